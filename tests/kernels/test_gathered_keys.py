"""The kernels of chosen keys: the choice against plain NumPy, attention against the oracle, threads, NaN, opcheck."""

import numpy as np
import pytest
import torch

import regard
from any_threads import assert_same_bits
from kernels.opcheck_cases import parametrize_opcheck
from regard import masks
from regard.conformance.oracles import attention as oracle
from regard.errors import RefusedError
from regard.kernels.implementations.gathered_keys import MASKED, NATIVE, GatheredKeysRequest
from regard.kernels.operators.gathered_keys_op import gathered_keys
from regard.kernels.operators.highest_keys_op import highest_keys
from regard.kernels.operators.kernel_arguments import KernelArguments, to_kernel_arguments
from regard.kernels.request import Request, Terms
from regard.kernels.select import select

BATCH, HEADS, HEAD_DIM, VALUE_DIM = 2, 6, 19, 37
SCALE = 0.3


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def make_tokens(queries: int, keys: int, key_heads: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Query, key and value in the memory layout of layers."""
    shapes = (queries, HEADS, HEAD_DIM), (keys, key_heads, HEAD_DIM), (keys, key_heads, VALUE_DIM)
    return [random(BATCH, *shape).transpose(1, 2).to(dtype).requires_grad_() for shape in shapes]


def positions_of(allowed: np.ndarray, count: int) -> torch.Tensor:
    """The allowed keys of each row, ascending, and -1 behind."""
    positions = np.full((*allowed.shape[:3], count), -1, dtype=np.int32)
    for row in np.ndindex(*allowed.shape[:3]):
        found = np.flatnonzero(allowed[row])
        positions[row][: len(found)] = found
    return torch.from_numpy(positions)


def choose_in_numpy(scores: np.ndarray, allowed: np.ndarray, count: int) -> torch.Tensor:
    """Sort all scores, rounded to float32, of each row; the first of equal ones."""
    rounded = scores.astype(np.float32)
    chosen = np.zeros(scores.shape, dtype=bool)
    for row in np.ndindex(*scores.shape[:3]):
        keys = np.flatnonzero(allowed[row]).tolist()
        keys.sort(key=lambda key, row=row: (-rounded[row][key], key))
        chosen[row][keys[:count]] = True
    return positions_of(chosen, count)


def random_positions(queries: int, keys: int, heads: int, count: int) -> torch.Tensor:
    """Some distinct keys of each query; none of every seventh."""
    allowed = (random(BATCH, heads, queries, keys, seed=5).argsort(-1) < count).numpy()
    allowed[:, :, ::7] = False
    return positions_of(allowed, count)


def request_of(tokens: list[torch.Tensor], positions: torch.Tensor) -> GatheredKeysRequest:
    return GatheredKeysRequest(
        Request(*tokens, Terms(scale=SCALE)),
        positions,
        lambda request: select("attention", "reference", request).compute(request),
    )


@pytest.mark.parametrize("kind", ["random", "equal", "whole numbers"])
@pytest.mark.parametrize(("queries", "keys", "count"), [(67, 131, 3), (131, 131, 17), (5, 401, 130), (3, 2111, 64)])
def test_chooses_the_highest_scores(kind: str, queries: int, keys: int, count: int) -> None:
    query, key = random(BATCH, HEADS, queries, HEAD_DIM), random(BATCH, 2, keys, HEAD_DIM)
    if kind == "equal":
        key = key[:, :, :1].expand_as(key)
    if kind == "whole numbers":
        query, key = query.round(), key.round()
    causal = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    scores = query.double().numpy() @ np.repeat(key.double().numpy(), HEADS // 2, axis=1).swapaxes(2, 3)
    expected = choose_in_numpy(scores, np.broadcast_to(causal, scores.shape), count)
    request = Request(query, key, key, Terms(masks.causal()))
    found = highest_keys(query, key, None, None, to_kernel_arguments(request), count=count, heads=HEADS, summed=False)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", ["random", "whole numbers", "negative weights"])
def test_chooses_the_highest_sums(kind: str) -> None:
    keys, count = 311, 40
    query, key, weight = random(BATCH, 3, keys, 7), random(BATCH, 1, keys, 7), random(BATCH, 3, keys, 1)
    if kind == "whole numbers":
        query, key, weight = query.round(), key.round(), weight.round()
    if kind == "negative weights":
        weight = -weight.abs()
    products = np.maximum(query.double().numpy() @ key.double().numpy().swapaxes(2, 3), 0)
    scores = (weight.double().numpy() * products).sum(1, keepdims=True)
    terms = KernelArguments(high=0)
    found = highest_keys(query, key, weight, None, terms, count=count, heads=1, summed=True)
    causal = np.broadcast_to(np.tril(np.ones((keys, keys), dtype=bool)), scores.shape)
    assert torch.equal(found, choose_in_numpy(scores, causal, count))


def test_scores_that_float32_cannot_tell_apart_are_compared_in_float64() -> None:
    keys = 701
    query = torch.ones(1, 1, 1, 3)
    key = torch.zeros(1, 1, keys, 3)
    key[..., 0], key[..., 1] = 2.0**30, -(2.0**30)
    key[0, 0, :, 2] = random(keys)  # lost beside 2^30 in float32, and exact in float64
    found = highest_keys(query, key, None, None, KernelArguments(), count=9, heads=1, summed=False)
    best = key[0, 0, :, 2].topk(9).indices.sort().values
    assert torch.equal(found[0, 0, 0], best.int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("key_heads", "position_heads"), [(1, 1), (2, 2), (2, 6), (6, 1), (6, 6)])
def test_agrees_with_the_oracle(dtype: torch.dtype, key_heads: int, position_heads: int) -> None:
    queries, keys, count = 41, 131, 23
    tokens, positions = (
        make_tokens(queries, keys, key_heads, dtype),
        random_positions(queries, keys, position_heads, count),
    )
    request = request_of(tokens, positions)
    allowed = np.broadcast_to(request.allowed(torch.arange(queries)).numpy(), (BATCH, HEADS, queries, keys))
    output, upstream = NATIVE.compute(request), random(BATCH, HEADS, queries, VALUE_DIM).to(dtype)
    wide = [part.detach().double() for part in tokens]
    expected = oracle.attention(
        wide[0].numpy(),
        *(part.repeat_interleave(HEADS // key_heads, 1).numpy() for part in wide[1:]),
        allowed=allowed,
        scale=SCALE,
    )[0]
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    np.testing.assert_allclose(output.detach().double().numpy(), expected, rtol=tolerance, atol=tolerance)
    leaves = [part.requires_grad_() for part in wide]
    right = torch.autograd.grad(MASKED.compute(request_of(leaves, positions)), leaves, upstream.double())
    for found, one in zip(torch.autograd.grad(output, tokens, upstream), right, strict=True):
        torch.testing.assert_close(found.double(), one, rtol=4 * tolerance, atol=4 * tolerance)


def test_bits_do_not_depend_on_threads() -> None:
    tokens, positions = make_tokens(301, 301, 2), random_positions(301, 301, 6, 31)

    def compute():
        output = NATIVE.compute(request_of(tokens, positions))
        return output, *torch.autograd.grad(output, tokens, torch.ones_like(output))

    assert_same_bits(compute, threads=(1, 3))


def test_nan_reaches_the_queries_that_chose_it_alone() -> None:
    tokens, positions = make_tokens(41, 131, 2), random_positions(41, 131, 6, 23)
    clean = NATIVE.compute(request_of(tokens, positions))
    upstream = torch.ones_like(clean)
    for side in (1, 2):
        broken = [part.detach().clone() for part in tokens]
        broken[side][0, 1, 5] = torch.inf
        leaves = [part.requires_grad_() for part in broken]
        output = NATIVE.compute(request_of(leaves, positions))
        reached = torch.zeros(BATCH, HEADS, 41, dtype=torch.bool)
        reached[0, 3:] = (positions[0, 3:] == 5).any(-1)
        assert output[reached].isnan().all()
        assert torch.equal(output[~reached], clean[~reached])
        for gradient in torch.autograd.grad(output, leaves, upstream):
            assert gradient.isfinite().all()


def test_dropout_keeps_the_mean_and_its_gradient() -> None:
    tokens, positions = make_tokens(3, 19, 6, torch.float64), random_positions(3, 19, 6, 11)

    def compute(*parts: torch.Tensor) -> torch.Tensor:
        return gathered_keys(*parts, positions, SCALE, 0.4, torch.tensor(3))

    few = [part[:1, :, :, :3].detach().requires_grad_() for part in tokens]
    torch.autograd.gradcheck(lambda *parts: gathered_keys(*parts, positions[:1], SCALE, 0.4, torch.tensor(3)), few)
    assert not torch.equal(compute(*tokens), NATIVE.compute(request_of(tokens, positions)))


def test_refuses_a_second_derivative() -> None:
    tokens, positions = make_tokens(7, 13, 6), random_positions(7, 13, 6, 5)
    output = NATIVE.compute(request_of(tokens, positions))
    (gradient,) = torch.autograd.grad(output.square().sum(), tokens[:1], create_graph=True)
    with pytest.raises((RefusedError, RuntimeError)):
        gradient.sum().backward()


def test_numbers_that_are_no_key_are_never_read() -> None:
    tokens = make_tokens(3, 13, 6)
    positions = torch.tensor([2, 2**31 - 1, -7, 13], dtype=torch.int32).expand(BATCH, 6, 3, 4).contiguous()
    only = torch.tensor([2, -1, -1, -1], dtype=torch.int32).expand(BATCH, 6, 3, 4).contiguous()
    output = NATIVE.compute(request_of(tokens, positions))
    torch.autograd.grad(output, tokens, torch.ones_like(output))
    assert torch.equal(output, NATIVE.compute(request_of(tokens, only)))


@parametrize_opcheck(["plain", "dropout"], default_kinds=["plain"])
def test_operators_pass_opcheck(name: str, utilities: object, without_shape_checks: None) -> None:
    tokens, positions = make_tokens(5, 13, 2), random_positions(5, 13, 2, 4)
    terms = (SCALE, 0.5, torch.tensor(3)) if name == "dropout" else (SCALE, 0.0, None)
    torch.library.opcheck(torch.ops.regard.gathered_keys.default, (*tokens, positions, *terms), test_utils=utilities)
    plain = [part.detach() for part in tokens]
    upstream = torch.ones(BATCH, HEADS, 5, VALUE_DIM)
    torch.library.opcheck(
        torch.ops.regard.gathered_keys_backward.default, (upstream, *plain, positions, *terms), test_utils=utilities
    )
    torch.library.opcheck(
        torch.ops.regard.highest_keys.default,
        (plain[0], plain[1], None, None, 3, HEADS, False, *KernelArguments(high=8)),
        test_utils=utilities,
    )


@parametrize_opcheck(["plain"], default_kinds=[])
def test_chosen_blocks_pass_opcheck(name: str, utilities: object, without_shape_checks: None) -> None:
    query, key, value = (random(1, 2, 131, 8, seed=at).requires_grad_() for at in range(3))
    chosen = torch.zeros(1, 2, 131, 3, dtype=torch.bool)
    chosen[:, :, 64:, 0] = True
    terms = (chosen, None, 64, SCALE, 0.0, None)
    torch.library.opcheck(torch.ops.regard.chosen_blocks.default, (query, key, value, *terms), test_utils=utilities)
    output, normalizer = torch.ops.regard.chosen_blocks.default(query, key, value, *terms)
    saved = (part.detach() for part in (torch.ones_like(output), query, key, value, output, normalizer))
    torch.library.opcheck(torch.ops.regard.chosen_blocks_backward.default, (*saved, *terms), test_utils=utilities)


@parametrize_opcheck(["plain", "chunks", "divided queries as keys"], default_kinds=[])
def test_bucket_attention_passes_opcheck(name: str, utilities: object, without_shape_checks: None) -> None:
    query, key, value = (random(1, 2, 67, 8, seed=at).requires_grad_() for at in range(3))
    buckets = random(1, 2, 67, 2, seed=9).gt(0).long()
    key = None if name == "divided queries as keys" else key
    terms = (buckets, buckets, 2, 0, None, 13 if name == "chunks" else None, SCALE, 0.0, None)
    torch.library.opcheck(torch.ops.regard.bucket_attention.default, (query, key, value, *terms), test_utils=utilities)
    results = torch.ops.regard.bucket_attention.default(query, key, value, *terms)
    parts = (torch.ones_like(results[0]), *results, query, key, value)
    saved = (None if part is None else part.detach() for part in parts)
    torch.library.opcheck(torch.ops.regard.bucket_attention_backward.default, (*saved, *terms), test_utils=utilities)


def test_mechanisms_use_the_kernels() -> None:
    query, key, value = (random(1, 2, 211, 16, seed=at) for at in range(3))
    mechanism = regard.mechanism("top_k", heads=2, head_dim=16, keys=20)
    output = mechanism(query, key, value, masks.causal())
    request = mechanism.make_request(query, key, value, masks.causal(), None)
    torch.testing.assert_close(output, mechanism.attend_under_mask(request))

"""Hash buckets: the same choices on every instruction set and in plain torch, and keys that are divided queries."""

import hashlib
import os

import pytest
import torch

from regard.kernels.extension import native
from regard.kernels.operators.token_hash_op import find_buckets
from regard.kernels.reference.bucket_attention import BucketRequest
from regard.kernels.select import select
from regard.mechanisms.locality_hash import draw_rotations, hash_in_torch, hash_tokens
from script_process import run_script

BATCH, HEADS, TOKENS, HEAD_DIM = 2, 3, 211, 13


def make_tokens(head_dim: int = HEAD_DIM) -> torch.Tensor:
    """Tokens of all kinds: usual, near ties, zeros, huge, tiny, subnormal and not finite."""
    tokens = torch.randn(BATCH, HEADS, TOKENS, head_dim, generator=torch.Generator().manual_seed(7))
    scales = (1.0, 2.0**-140, 1e-20, 1e20, 2.0**100, 0.0)
    for at, scale in enumerate(scales):
        tokens[:, :, 20 + 10 * at : 30 + 10 * at] *= scale
    tokens[0, 0, 90, 0], tokens[0, 1, 91, -1] = torch.nan, -torch.inf
    tokens[:, :, 100:150] = torch.eye(head_dim)[torch.arange(50) % head_dim]
    return tokens


def make_rotations(factors: tuple[int, ...], head_dim: int = HEAD_DIM) -> torch.Tensor:
    """Rotations with columns that are equal, opposite, or differ in the last bit of one number."""
    rotations = draw_rotations(seed=3, heads=HEADS, head_dim=head_dim, rounds=3, factors=factors)
    if factors and factors[0] >= 8:
        rotations[..., 1], rotations[..., 2] = rotations[..., 0], -rotations[..., 0]
        rotations[..., 3] = rotations[..., 0]
        rotations[..., 0, 3] += 1
    return rotations


@pytest.mark.parametrize("factors", [(2,), (8,), (34,), (128,), (16, 6), ()], ids=repr)
@pytest.mark.parametrize("head_dim", [1, HEAD_DIM, 64])
def test_buckets_equal_those_of_plain_torch(factors: tuple[int, ...], head_dim: int) -> None:
    tokens, rotations = make_tokens(head_dim), make_rotations(factors, head_dim)
    expected = hash_in_torch(tokens, rotations, factors)
    assert torch.equal(hash_tokens(tokens, rotations, factors), expected)
    assert torch.equal(hash_tokens(tokens.transpose(1, 2).contiguous().transpose(1, 2), rotations, factors), expected)
    assert torch.equal(hash_in_torch(tokens.double(), rotations, factors), expected)


def digest() -> str:
    """Return a digest of the buckets of all tokens."""
    found = find_buckets(make_tokens(), make_rotations((128,)), (128,))
    return hashlib.sha256(found.numpy().tobytes()).hexdigest()


DIGESTS = """
import torch
from kernels.test_hash_buckets import digest
from regard.kernels.extension import native
print(native.isa())
for threads in (1, 3):
    torch.set_num_threads(threads)
    print(digest())
"""


@pytest.mark.parametrize("isa", native.isas())
def test_instruction_sets_and_threads_choose_the_same_buckets(isa: str) -> None:
    result = run_script(DIGESTS, environment=os.environ | {"REGARD_ISA": isa})
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [isa, digest(), digest()]


@pytest.mark.parametrize("chunk", [None, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_divided_keys_and_their_gradients_equal_plain_torch(dtype: torch.dtype, chunk: int | None) -> None:
    made = torch.Generator().manual_seed(5)
    shape = (BATCH, HEADS, TOKENS)
    query, value, upstream = (torch.randn(*shape, size, generator=made, dtype=dtype) for size in (HEAD_DIM, 7, 7))
    query[:, :, 40:50] *= 2.0**-70
    buckets = torch.randint(0, 5, (*shape, 2), generator=made)
    hidden = buckets.clone()
    hidden[:, :, -30:] = -1
    results = {}
    for impl in ("native", "reference"):
        leaves = [one.clone().requires_grad_() for one in (query, value)]
        request = BucketRequest(
            leaves[0], None, leaves[1], buckets, hidden, buckets=5, except_self=True, chunk=chunk, scale=0.3
        )
        output, empty = select("bucket attention", impl, request).compute(request)
        results[impl] = [output.detach(), empty, *torch.autograd.grad(output, leaves, upstream)]
    for actual, expected in zip(results["native"], results["reference"], strict=True):
        tolerance = 1e-4 if dtype == torch.float32 else 1e-11
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_huge_and_broken_keys_are_divided() -> None:
    rows = torch.randn(1, 1, 67, 13, generator=torch.Generator().manual_seed(2))
    rows[0, 0, 3] *= 2.0**100
    rows[0, 0, 5, 2] = torch.inf
    divided = torch.empty_like(rows)
    native.divide_rows(rows, divided)
    wide = rows.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    expected[0, 0, 5] = torch.nan
    torch.testing.assert_close(divided, expected.float(), rtol=1e-6, atol=1e-6, equal_nan=True)


def test_find_buckets_passes_opcheck() -> None:
    arguments = (make_tokens(), make_rotations((8, 4)), [8, 4])
    torch.library.opcheck(torch.ops.regard.find_buckets.default, arguments)


def test_wrong_arguments_are_refused() -> None:
    codes, place = torch.zeros(1, 5, 1, dtype=torch.int32), torch.empty(1, 1, 5, dtype=torch.int32)
    with pytest.raises(ValueError, match="start: a place is not there"):
        native.sort_by_bucket(codes, torch.full((1, 1, 3), 62), torch.empty(1, 64, dtype=torch.int32), place)
    with pytest.raises(ValueError, match="codes: an index is out of range"):
        native.count_buckets(codes + 1, torch.empty(1, 1, 3, dtype=torch.long))
    tokens, rows = torch.zeros(1, 1, 5, 2), torch.full((1, 1, 4), 5, dtype=torch.int32)
    for name in ("query_rows", "key_rows"):
        output = torch.empty(1, 1, 4 if name == "query_rows" else 5, 2)
        with pytest.raises(ValueError, match=f"{name}: an index is out of range"):
            native.forward(tokens, tokens, tokens, output, None, **{name: rows})
    with pytest.raises(ValueError, match="factors: expected even numbers"):
        native.hash_tokens(
            torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 2, 1), torch.tensor([3]), torch.zeros(1, 1, 5, 1).long()
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_listed_rows_are_those_that_were_moved(dtype) -> None:
    """Forward and backward, with rows that appear twice, and rows of zeros."""
    generator = torch.Generator().manual_seed(9)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    query, key, value = random(2, 71, 3, 13).transpose(1, 2), random(2, 3, 83, 13), random(2, 3, 83, 7)
    query[1, 2, 5, 3] = key[0, 1, 7, 2] = torch.nan
    query_rows, key_rows = (torch.randint(-1, count, (2, 3, 131), generator=generator).int() for count in (71, 83))
    upstream, nothing = random(2, 3, 71, 7), torch.zeros(2, 3, 131, 7, dtype=dtype)

    def move(tokens, rows):
        rows = rows.long()[..., None]
        moved = tokens.gather(2, rows.clamp(min=0).expand(-1, -1, -1, tokens.shape[3]))
        return torch.where(rows < 0, 0.0, moved).to(dtype)

    moved = [move(query, query_rows), move(key, key_rows), move(value, key_rows)]
    results = []
    for tokens, gradient, lists in (
        ((query, key, value), upstream, {"query_rows": query_rows, "key_rows": key_rows}),
        (moved, move(upstream, query_rows), {}),
    ):
        output = torch.empty(2, 3, 131, 7, dtype=dtype)
        normalizer = torch.empty(2, 3, 131, 2, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        native.forward(*tokens, output, None, normalizer=normalizer, scale=0.3, **lists)
        gradients = [torch.empty_like(side) for side in moved]
        native.backward(gradient, *tokens, nothing, normalizer, *gradients, None, None, scale=0.3, **lists)
        results.append([output, normalizer, *gradients])
    for listed, expected in zip(*results, strict=True):
        assert torch.equal(listed.nan_to_num(7.0), expected.nan_to_num(7.0))

"""Forgetting attention beside the conformance suite: blocks, long inputs, decoding, and gates at their limits."""

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.oracles import complex_step
from regard.conformance.oracles import forgetting as oracle
from regard.mechanisms import forgetting
from sampled_parameters import parametrize_sample

HEADS, HEAD_DIM = 2, 8
NAMES = ("query", "key", "value", "forget")


def make_inputs(queries: int, keys: int, *, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(queries + keys)
    shapes = ((queries, HEAD_DIM), (keys, HEAD_DIM), (keys, HEAD_DIM), (keys, 1))
    return tuple(torch.randn(2, HEADS, *shape, dtype=dtype, generator=generator) for shape in shapes)


@pytest.fixture
def mechanism() -> forgetting.Forgetting:
    return forgetting.Forgetting(heads=HEADS, head_dim=HEAD_DIM)


@pytest.mark.parametrize(("queries", "keys"), [(23, 23), (5, 23), (23, 5), (1, 23)])
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_agree_with_the_oracle(mechanism, monkeypatch, queries: int, keys: int, padded: bool) -> None:
    monkeypatch.setattr(forgetting, "_BLOCK", 7)
    query, key, value, forget = make_inputs(queries, keys)
    lengths = torch.tensor([keys, keys - 2])
    mask = masks.padding(lengths) if padded else None
    allowed = np.arange(keys)[None, None, None] < lengths.numpy()[:, None, None, None] if padded else None
    expected = oracle.attention(*(part.numpy() for part in (query, key, value, forget)), allowed)
    np.testing.assert_allclose(
        mechanism(query, key, value, mask, forget=forget).numpy(), expected, rtol=1e-9, atol=1e-12
    )


def make_small(length: int) -> tuple[forgetting.Forgetting, tuple[torch.Tensor, ...]]:
    """A mechanism, and its inputs, of few numbers, for finite differences."""
    query, key, value, forget = (part[:1] for part in make_inputs(length, length))
    inputs = (query[..., :3], key[..., :3], value[..., :2], forget)
    return forgetting.Forgetting(heads=HEADS, head_dim=3), tuple(part.clone().requires_grad_() for part in inputs)


def test_gradients_of_gates_across_blocks(monkeypatch) -> None:
    monkeypatch.setattr(forgetting, "_BLOCK", 3)
    mechanism, inputs = make_small(8)
    assert torch.autograd.gradcheck(lambda q, k, v, f: mechanism(q, k, v, forget=f), inputs)


def test_float32_is_exact_at_thousands_of_tokens(mechanism) -> None:
    parts = make_inputs(4096, 4096)
    exact = mechanism(*parts[:3], forget=parts[3])
    rounded = tuple(part.float() for part in parts)
    # A bias is at most the sum of |log f| over a block, and rounded by half an epsilon of it. Scores that are off by e
    # change weights by 2 e of themselves, and so an output by 2 e of the largest value.
    decays = -torch.nn.functional.logsigmoid(parts[3]).unfold(2, forgetting._BLOCK, 1).sum(-1).max()
    bound = 2 * float(decays * parts[2].abs().max()) * torch.finfo(torch.float32).eps / 2
    torch.testing.assert_close(mechanism(*rounded[:3], forget=rounded[3]).double(), exact, rtol=0, atol=bound)


def test_model_decodes_with_it() -> None:
    from regard.models import Transformer, TransformerConfig

    torch.manual_seed(3)
    config = TransformerConfig(
        vocabulary=11, width=12, layers=1, heads=3, inner=7, mechanism="dot_product", decoder_mechanism="forgetting"
    )
    model = Transformer(config).eval()
    source, target = torch.randint(3, 11, (2, 5)), torch.randint(3, 11, (2, 4))
    exact, state = model(source, target).logits, model.start(source)
    for place in range(4):
        logits, state = model.step(target[:, place], state)
        torch.testing.assert_close(logits, exact[:, place], rtol=0, atol=1e-5)


def test_without_gates_equals_causal_attention(mechanism) -> None:
    query, key, value, _ = make_inputs(6, 9)
    torch.testing.assert_close(mechanism(query, key, value), regard.attention(query, key, value, mask=masks.causal()))


def test_nonfinite_gate_affects_only_later_queries(mechanism) -> None:
    query, key, value, forget = make_inputs(7, 7)
    exact = mechanism(query, key, value, forget=forget)
    forget[0, 1, 3] = float("nan")
    actual = mechanism(query, key, value, forget=forget)
    assert torch.equal(actual[0, 1, :3], exact[0, 1, :3])
    assert actual[0, 1, 3:].isnan().all()
    assert torch.equal(actual[0, 0], exact[0, 0])
    assert torch.equal(actual[1], exact[1])


def test_gate_of_the_first_token_has_no_effect(mechanism) -> None:
    query, key, value, forget = make_inputs(7, 7)
    exact = mechanism(query, key, value, forget=forget)
    forget[:, :, 0] = float("nan")
    assert torch.equal(mechanism(query, key, value, forget=forget), exact)


def test_closed_gate_hides_earlier_tokens(mechanism) -> None:
    query, key, _, forget = make_inputs(7, 7)
    forget[:, :, 4] = -1e4
    seen = mechanism.weights(query, key, forget=forget)
    assert (seen[:, :, 4:, :4] == 0).all()
    torch.testing.assert_close(seen.sum(-1), torch.ones(2, HEADS, 7, dtype=torch.float64))


@parametrize_sample("gate, dtype", [-50.0, -1e3, -1e5, -1e7, -1e15, -1e30, -3e38], [torch.float32, torch.float64])
def test_decays_behind_closed_gates_are_exact(mechanism, gate: float, dtype: torch.dtype) -> None:
    """Also with several of them, in different heads, and for scores as large as float32 allows."""
    query, key, value, forget = make_inputs(67, 67)
    forget[0, 0, 20] = forget[0, 1, 41] = forget[1, 0, 5] = forget[1, 0, 23] = forget[1, 0, 24] = gate
    parts = [part.to(dtype).requires_grad_() for part in (query, key, value, forget)]
    exact = {name: part.detach().double().numpy() for name, part in zip(NAMES, parts, strict=True)}
    output = mechanism(*parts[:3], forget=parts[3])
    # A score has an error of half an ulp of the decays that its block may have, and of its own sum of products.
    bound = 4 * (forgetting._MAX_DECAY + HEAD_DIM) * torch.finfo(dtype).eps
    np.testing.assert_allclose(output.detach().double().numpy(), oracle.attention(**exact), rtol=0, atol=bound)
    gradients = torch.autograd.grad(output.sum(), parts)
    assert all(gradient.isfinite().all() for gradient in gradients)
    numbers = {name: gradient.double().numpy() for name, gradient in zip(NAMES, gradients, strict=True)}
    complex_step.check_gradients(lambda point: oracle.attention(**point), exact, numbers, atol=67 * bound)


def test_a_closed_gate_yields_to_a_higher_score(mechanism) -> None:
    """The weight behind a closed gate is 0 only if the scores say so: here the key's score makes up for the gate."""
    query, key, value, forget = (part[:1, :1, :9] for part in make_inputs(9, 9, dtype=torch.float32))
    query, key = query.clone(), key.clone()
    query[..., 0], key[..., 0], key[:, :, 2, 0] = 100.0, 0.0, 100.0
    forget = forget.clone()
    forget[:, :, 5] = 3.0 - 1e4 / HEAD_DIM**0.5
    parts = (query, key, value, forget)
    single = forgetting.Forgetting(heads=1, head_dim=HEAD_DIM)
    exact = oracle.attention(*(part.double().numpy() for part in parts))
    np.testing.assert_allclose(single(*parts[:3], forget=forget).numpy(), exact, rtol=0, atol=2e-3)


def test_blocks_end_where_gates_close(mechanism, monkeypatch) -> None:
    monkeypatch.setattr(forgetting, "_BLOCK", 16)
    gates = torch.full((1, 2, 50), -1.0, dtype=torch.float64)
    assert list(forgetting._blocks(gates, 50, 0)) == [(0, 16), (16, 32), (32, 48), (48, 50)]
    gates[:, 1, 20], gates[:, 0, 21] = -1e9, -torch.inf
    assert list(forgetting._blocks(gates, 50, 0)) == [(0, 16), (16, 20), (20, 21), (21, 37), (37, 50)]
    assert list(forgetting._blocks(gates, 30, 20)) == [(0, 1), (1, 17), (17, 30)]
    assert list(forgetting._blocks(gates[..., :30], 50, -20)) == [(0, 16), (16, 32), (32, 40), (40, 41), (41, 50)]
    assert list(forgetting._blocks(None, 0, 0)) == [(0, 0)]


def test_weights_are_differentiable() -> None:
    mechanism, (query, key, _, forget) = make_small(4)
    assert torch.autograd.gradcheck(lambda q, k, f: mechanism.weights(q, k, forget=f), (query, key, forget))

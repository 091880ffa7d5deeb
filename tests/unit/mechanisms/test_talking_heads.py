"""Talking-heads attention beside the conformance suite: mixing, tiles, NaN in one head, and refusals."""

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.oracles import talking_heads as oracle
from regard.errors import RefusedError
from regard.kernels.reference import query_tiles
from regard.mechanisms import TalkingHeads

HEADS, HEAD_DIM, KEYS = 3, 5, 13


def make_inputs(queries: int = KEYS, key_heads: int = HEADS) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(queries)
    shapes = ((HEADS, queries), (key_heads, KEYS), (key_heads, KEYS))
    return tuple(torch.randn(2, *shape, HEAD_DIM, dtype=torch.float64, generator=generator) for shape in shapes)


def build_mechanism(head_dim: int, impl: str) -> TalkingHeads:
    """Matrices that are far from the identity."""
    torch.manual_seed(3)
    mechanism = TalkingHeads(heads=HEADS, head_dim=head_dim, impl=impl).double()
    for parameter in mechanism.parameters():
        torch.nn.init.normal_(parameter)
    return mechanism


@pytest.fixture(params=["native", "reference"])
def mechanism(request) -> TalkingHeads:
    return build_mechanism(HEAD_DIM, request.param)


@pytest.fixture
def in_tiles(monkeypatch) -> None:
    monkeypatch.setattr(query_tiles, "_TILE_BYTES", 3 * 2 * HEADS * KEYS * 8)  # three queries


@pytest.mark.usefixtures("in_tiles")
@pytest.mark.parametrize("key_heads", [1, HEADS])
@pytest.mark.parametrize("queries", [1, 7, KEYS])
def test_agrees_with_the_equation(mechanism, queries, key_heads) -> None:
    inputs = make_inputs(queries, key_heads)
    allowed = np.arange(KEYS) <= np.arange(queries)[:, None] + KEYS - queries
    matrices = [one.detach().numpy() for one in (mechanism.score_mixing, mechanism.weight_mixing)]
    expected, weights = oracle.attention(*(one.numpy() for one in inputs), *matrices, allowed)
    np.testing.assert_allclose(mechanism(*inputs, masks.causal()).detach().numpy(), expected, rtol=0, atol=1e-12)
    actual = mechanism.weights(*inputs[:2], mask=masks.causal()).detach().numpy()
    np.testing.assert_allclose(actual, weights, rtol=0, atol=1e-12)


def test_identities_are_dot_product_attention(mechanism) -> None:
    for parameter in mechanism.parameters():
        torch.nn.init.eye_(parameter)
    inputs = make_inputs()
    torch.testing.assert_close(mechanism(*inputs, masks.causal()), regard.attention(*inputs, mask=masks.causal()))


def test_permutations_exchange_heads(mechanism) -> None:
    """Head 1 attends by the scores of head 0, and its weights reach the values of head 2."""
    order = torch.tensor([1, 2, 0])
    for parameter in mechanism.parameters():
        parameter.data = torch.eye(HEADS, dtype=torch.float64)[order]
    query, key, value = make_inputs()
    expected = regard.attention(query[:, [1, 2, 0]], key[:, [1, 2, 0]], value)
    torch.testing.assert_close(mechanism(query, key, value), expected)


@pytest.mark.usefixtures("in_tiles")
def test_first_and_second_derivatives() -> None:
    mechanism, inputs = (
        build_mechanism(2, "reference"),
        tuple(one[:1, :, :4, :2].requires_grad_() for one in make_inputs()),
    )

    def compute(*parts: torch.Tensor) -> torch.Tensor:
        return mechanism(*parts[:3], masks.causal())

    assert torch.autograd.gradcheck(compute, (*inputs, *mechanism.parameters()))
    assert torch.autograd.gradgradcheck(compute, (*inputs, *mechanism.parameters()))


@pytest.mark.parametrize("side", ["query", "key", "value"])
def test_nan_in_one_head(mechanism, side) -> None:
    """Scores are mixed across heads, values are not: a NaN in a value stays in its head."""
    inputs = dict(zip(("query", "key", "value"), make_inputs(), strict=True))
    before = mechanism(*inputs.values(), masks.causal())
    inputs[side][0, 1, 4, 2] = torch.nan
    leaves = [one.requires_grad_() for one in inputs.values()]
    after = mechanism(*leaves, masks.causal())
    rows = [4] if side == "query" else list(range(4, KEYS))
    broken = torch.zeros(2, HEADS, KEYS, dtype=torch.bool)
    broken[0, [1] if side == "value" else [0, 1, 2]] = torch.isin(torch.arange(KEYS), torch.tensor(rows))
    assert after[broken].isnan().all()
    assert torch.equal(after[~broken], before[~broken])
    after.nan_to_num().sum().backward()
    assert all(one.grad.isfinite().all() for one in (*leaves, *mechanism.parameters()))


def test_masks_of_single_heads_are_refused(mechanism) -> None:
    inputs = make_inputs()
    by_head = masks.keep(torch.rand(1, HEADS, KEYS, KEYS) > 0.5)
    with pytest.raises(RefusedError, match=r"(?s)scores of all heads, so a mask must be the same.*to do: "):
        mechanism(*inputs, by_head)
    assert mechanism(*inputs, masks.keep(torch.ones(1, 1, KEYS, KEYS, dtype=torch.bool))).shape == inputs[0].shape

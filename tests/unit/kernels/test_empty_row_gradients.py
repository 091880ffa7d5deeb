"""Promise 2, backward: a query with no visible keys has no effect, for any gradient of its output."""

import pytest
import torch

import regard
from regard import masks, positions
from regard.mechanisms.local_p import LocalPredictive

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM = 2, 3, 5, 7, 4
EMPTY = 2


def _attention(impl):
    def output(tokens, mask, dropout):
        return regard.attention(*tokens, mask=mask, dropout=dropout, impl=impl), ()

    return output


def _biased(bias, impl="reference"):
    def output(tokens, mask, dropout):
        return regard.attention(*tokens, mask=mask, bias=bias, dropout=dropout, impl=impl), bias.parameters()

    return output


def _masking_bias(impl):
    def output(tokens, mask, dropout):
        bias = torch.zeros(1, 1, QUERIES, KEYS).masked_fill(~mask.dense(QUERIES, KEYS), -torch.inf)
        return regard.attention(*tokens, bias=bias, dropout=dropout, impl=impl), ()

    return output


def _observe(impl):
    def output(tokens, mask, _):
        return regard.observe(*tokens, mask=mask, impl=impl).output, ()

    return output


def _mechanism(build, **options):
    def output(tokens, mask, dropout):
        mechanism = build(heads=HEADS, head_dim=HEAD_DIM, dropout=dropout, **options)
        return mechanism(*tokens, mask), mechanism.parameters()

    return output


def _mechanism_by_name(name, **options):
    return _mechanism(lambda **sizes: regard.mechanism(name, **sizes), **options)


COMPUTATIONS = {
    **{f"attention, {impl}": _attention(impl) for impl in ("native", "sdpa", "reference")},
    **{f"a bias of -inf, {impl}": _masking_bias(impl) for impl in ("native", "sdpa", "reference")},
    **{f"observe, {impl}": _observe(impl) for impl in ("native", "reference")},
    **{f"T5, {impl}": _biased(positions.T5Buckets(HEADS), impl) for impl in ("native", "sdpa", "reference")},
    "Shaw": _biased(positions.ShawRelative(HEAD_DIM, 2)),
    **{f"additive, {impl}": _mechanism_by_name("additive", impl=impl) for impl in ("native", "reference")},
    **{f"luong_concat, {impl}": _mechanism_by_name("luong_concat", impl=impl) for impl in ("native", "reference")},
    **{f"sigmoid, {impl}": _mechanism_by_name("sigmoid", impl=impl) for impl in ("native", "reference")},
    **{f"talking_heads, {impl}": _mechanism_by_name("talking_heads", impl=impl) for impl in ("native", "reference")},
    "luong_dot": _mechanism_by_name("luong_dot"),
    "luong_general": _mechanism_by_name("luong_general"),
    "local-p": _mechanism(LocalPredictive),
}


@pytest.mark.parametrize(("dtype", "dropout"), [(torch.float32, 0.0), (torch.float32, 0.5), (torch.bfloat16, 0.0)])
@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_nonfinite_output_gradient_of_an_empty_row_has_no_effect(computation, dtype, dropout):
    """The gradients equal those for an output gradient of 0 in that row, since the row is constant."""
    allowed = torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool)
    allowed[:, :, EMPTY] = False
    tokens = [torch.randn(BATCH, HEADS, n, HEAD_DIM, dtype=dtype).requires_grad_() for n in (QUERIES, KEYS, KEYS)]
    output, parameters = COMPUTATIONS[computation](tokens, masks.keep(allowed), dropout)
    leaves, upstream = [*tokens, *parameters], torch.randn_like(output)
    expected, *poisoned = (
        torch.autograd.grad(
            output,
            leaves,
            upstream.index_fill(2, torch.tensor([EMPTY]), fill),
            retain_graph=True,
            materialize_grads=True,
        )
        for fill in (0.0, torch.nan, torch.inf)
    )
    assert not output[:, :, EMPTY].any()
    assert all(gradient.isfinite().all() for gradient in expected)
    for gradients in poisoned:
        assert all(torch.equal(one, other) for one, other in zip(expected, gradients, strict=True))


@pytest.mark.parametrize("impl", ["native", "sdpa", "reference"])
def test_no_keys(impl):
    query, key = torch.randn(1, 2, 3, HEAD_DIM, requires_grad=True), torch.randn(1, 2, 0, HEAD_DIM)
    regard.attention(query, key, key, impl=impl).backward(torch.full((1, 2, 3, HEAD_DIM), torch.nan))
    assert not query.grad.any()


def test_shaw_value_vectors_without_keys():
    shaw = positions.ShawRelative(HEAD_DIM, 2)
    query, key = torch.randn(1, 2, 3, HEAD_DIM), torch.randn(1, 2, 0, HEAD_DIM)
    regard.attention(query, key, key, bias=shaw).backward(torch.full((1, 2, 3, HEAD_DIM), torch.nan))
    assert not shaw.value_vectors.grad.any()

"""Gradients at the edges, for every mechanism: of rows without visible keys, and of calls without queries."""

import itertools

import pytest
import torch

import regard
from regard import masks
from regard.errors import RefusedError

BATCH, HEADS, HEAD_DIM, LENGTH = 3, 2, 6, 11
OPTIONS = {
    "dsa": {"keys": 3, "index_heads": 2, "index_dim": 5},
    "linformer": {"length": LENGTH, "projected": 5},
    "moba": {"block": 3, "chosen_blocks": 2},
    "nsa": {"block": 4, "chosen_blocks": 3, "compressed_block": 4, "stride": 2, "window": 3},
    "reformer": {"buckets": 2, "chunk": 4},
    "top_k": {"keys": 3},
}
NAMES = pytest.mark.parametrize("name", [row.name for row in regard.catalogue()])
MASKS = {
    "left padding": masks.padding([LENGTH, 3, 0], side="left"),
    "causal and left padding": masks.causal() & masks.padding([LENGTH, 3, 0], side="left"),
    "causal and right padding": masks.causal() & masks.padding([LENGTH, 3, 0]),
}


def build(name):
    torch.manual_seed(3)
    return regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM, **OPTIONS.get(name, {})).double()


def make_inputs(mechanism, queries=LENGTH, keys=LENGTH):
    generator = torch.Generator().manual_seed(7)
    shapes = {
        "query": (BATCH, HEADS, queries, HEAD_DIM),
        "key": (BATCH, HEADS, keys, HEAD_DIM),
        "value": (BATCH, HEADS, keys, HEAD_DIM),
    }
    for one in mechanism.extra_inputs:
        if one.projected:
            shapes[one.name] = (BATCH, one.heads, queries if one.side == "query" else keys, one.size)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for name, shape in shapes.items()
    }


def compute_gradients(mechanism, inputs, mask, empty, upstream_of_empty):
    output = mechanism(**inputs, mask=mask)
    upstream = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    upstream = upstream.masked_fill(empty[..., None], upstream_of_empty)
    wanted = [*inputs.values(), *mechanism.parameters()]
    return torch.autograd.grad(output, wanted, upstream, allow_unused=True, materialize_grads=True)


@NAMES
def test_a_nan_in_the_gradient_of_an_empty_row_has_no_influence(name):
    mechanism = build(name)
    inputs, calls = make_inputs(mechanism), 0
    for mask in MASKS.values():
        try:
            output = mechanism(**inputs, mask=mask)
        except RefusedError:
            continue
        calls += 1
        empty = ~mask.dense(LENGTH, LENGTH).expand(BATCH, HEADS, LENGTH, LENGTH).any(-1)
        assert not output[empty].any()
        expected = compute_gradients(mechanism, inputs, mask, empty, 0.0)
        for bad in (torch.nan, torch.inf):
            found = compute_gradients(mechanism, inputs, mask, empty, bad)
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert calls > 0


@NAMES
def test_a_call_without_queries_has_gradients_of_zero(name):
    mechanism = build(name)
    if name == "reformer":
        mechanism.chunk = None  # chunks need as many queries as keys
    inputs = make_inputs(mechanism, queries=0)
    output = mechanism(**inputs)
    assert output.shape == (BATCH, HEADS, 0, HEAD_DIM)
    output.sum().backward()
    assert inputs["query"].grad.shape == inputs["query"].shape
    assert all(not one.grad.any() for one in inputs.values() if one.grad is not None)


def test_chunks_without_tokens_have_no_weights():
    mechanism = build("reformer")
    inputs = {key: value.detach() for key, value in make_inputs(mechanism, queries=0, keys=0).items()}
    assert mechanism.weights(inputs["query"], inputs["key"]).shape == (BATCH, HEADS, 0, 0)


def poison(mechanism, inputs, side, number):
    """Copy the inputs, with ``number`` in the first key of the first text, or in all of its queries."""
    copies = {name: tensor.detach().clone() for name, tensor in inputs.items()}
    of_queries = {"query", *(one.name for one in mechanism.extra_inputs if one.side == "query")}
    copies[side][0, :, slice(None) if side in of_queries else 0, 0] = number
    return {name: tensor.requires_grad_() for name, tensor in copies.items()}


@NAMES
def test_rows_whose_visible_tokens_are_not_finite_give_no_gradients(name):
    """They are NaN, so no token has a gradient from them, also if they see no other token: then the sums over what is
    finite are empty, and their quotient is 0/0. Other texts have the gradients of a call without such rows.
    """
    mechanism, rows = build(name), 0
    text = torch.zeros(BATCH, HEADS, LENGTH, dtype=torch.bool)
    text[0] = True
    for mask in (masks.padding([1, LENGTH, 3]), masks.causal() & masks.padding([LENGTH, 3, 7]), masks.causal()):
        inputs = make_inputs(mechanism)
        try:
            expected = compute_gradients(mechanism, inputs, mask, text, 0.0)
        except RefusedError:
            continue
        for side, number in itertools.product(inputs, (torch.nan, torch.inf, -torch.inf)):
            poisoned = poison(mechanism, inputs, side, number)
            broken = mechanism(**poisoned, mask=mask).detach().isnan().all(-1)
            rows += int(broken.sum())
            found = compute_gradients(mechanism, poisoned, mask, text & ~broken, 0.0)
            note = (mask, side, number)
            assert not any(gradient[0].any() for gradient in found[: len(inputs)]), note
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), note
    assert rows > 0

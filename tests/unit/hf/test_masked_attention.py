"""The operator of compiled graphs: a mask whose structure is found when the graph runs, against eager's formula."""

import pytest
import torch
from torch.library import opcheck

from regard.hf import masked_attention_op
from regard.hf.attention_function import attention_function
from regard.hf.masked_attention_op import MASKED_ATTENTION
from regard.kernels.operators import attention_op
from script_process import run_script

QUERIES, KEYS = 13, 17
LOWEST = torch.finfo(torch.float32).min


def visible_cells(kind):
    """Which cells of (2, 1, queries, keys) are visible."""
    row, column = torch.arange(QUERIES)[:, None] + KEYS - QUERIES, torch.arange(KEYS)
    causal = (column <= row).expand(2, 1, -1, -1)
    if kind == "causal":
        return causal
    if kind == "window":
        return causal & (column > row - 5)
    if kind == "unfilled":  # as in a static cache: keys 11 and later are not there yet
        return (column < torch.minimum(row - 3, torch.tensor(11))).expand(2, 1, -1, -1)
    if kind == "padded":
        return causal & (column >= torch.tensor([0, 6])[:, None, None, None])
    if kind == "all":
        return torch.ones_like(causal)
    return torch.rand(2, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) < 0.6


def make_inputs(heads=4, key_heads=2):
    torch.manual_seed(3)
    query, key, value = (
        torch.randn(2, count, length, 7) for count, length in ((heads, QUERIES), (key_heads, KEYS), (key_heads, KEYS))
    )
    return query, key, value


def expected_output(query, key, value, mask, visible, sinks=None):
    """In float64, with rows of 0 where nothing is visible."""
    query, key, value, mask = (one.double() for one in (query, key, value, mask))
    key, value = (one.repeat_interleave(2, 1) for one in (key, value))
    scores = (query @ key.mT * 7**-0.5 + mask.masked_fill(~visible, 0)).masked_fill(~visible, -torch.inf)
    total = scores.logsumexp(-1, keepdim=True)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.double())
    return torch.where(visible, (scores - total.clamp_min(-1e30)).exp(), 0.0) @ value


@pytest.mark.parametrize("kind", ["causal", "window", "unfilled", "padded", "all", "scattered"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_results_and_gradients(kind, with_bias):
    visible, (query, key, value) = visible_cells(kind), make_inputs()
    numbers = torch.randn(2, 1, QUERIES, KEYS) if with_bias else torch.zeros(2, 1, QUERIES, KEYS)
    mask, sinks = numbers.masked_fill(~visible, LOWEST), torch.randn(1, 4, 1, 1)
    inputs = [one.requires_grad_() for one in (query, key, value, sinks)]
    output = MASKED_ATTENTION.torch_op(query, key, value, mask, 7**-0.5, 0.0, None, None, sinks)[0]
    expected = expected_output(query, key, value, mask, visible, sinks)
    torch.testing.assert_close(output.double(), expected, atol=2e-6, rtol=1e-5)
    factors = torch.randn(output.shape)
    found = torch.autograd.grad((output * factors).sum(), inputs)
    wanted = torch.autograd.grad((expected * factors.double()).sum(), inputs)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["causal", "window", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.bool])
def test_kernels_get_the_structure_and_no_cells(kind, dtype, monkeypatch):
    seen, visible, inputs = [], visible_cells(kind), make_inputs()
    compute = attention_op.ATTENTION.compute
    monkeypatch.setattr(attention_op.ATTENTION, "compute", lambda *given: seen.append(given[3:]) or compute(*given))
    mask = visible if dtype == torch.bool else torch.zeros(visible.shape, dtype=dtype)
    if dtype != torch.bool:
        mask = mask.masked_fill(~visible, -torch.inf if kind == "window" else torch.finfo(dtype).min)
    masked_attention_op.MASKED_ATTENTION.compute(*inputs, mask, 7**-0.5, 0.0, None, None, None)
    ((low, high, *others),) = seen
    terms = attention_op.KernelArguments(low, high, *others)
    assert (terms.dense, terms.bias, terms.row_start) == (None, None, None)
    assert high is not None


@pytest.mark.parametrize("kind", ["padded", "unfilled", "scattered"])
def test_operator_rules_of_torch(kind):
    """Schema, fake kernel, autograd and tracing with dynamic shapes."""
    query, key, value = (one.requires_grad_() for one in make_inputs())
    mask = torch.zeros(2, 1, QUERIES, KEYS).masked_fill(~visible_cells(kind), LOWEST)
    opcheck(MASKED_ATTENTION.torch_op, (query, key, value, mask, 0.4, 0.0, None, None, None))


class Layer(torch.nn.Module):
    is_causal = True


def check_masks_that_change():
    """A graph in which the memory of a mask is written again, and each layer sees what it holds at its turn."""
    masked_attention_op._MIN_CELLS = 1
    layer, (query, key, value) = Layer(), make_inputs()
    causal = torch.zeros(2, 1, QUERIES, KEYS).masked_fill(~visible_cells("causal"), LOWEST)

    def attend(query, key, value, mask):
        mask = mask + 0.0
        first = attention_function(layer, query, key, value, mask)[0]
        mask[..., 5:] = LOWEST
        second = attention_function(layer, query, key, value, mask)[0]
        mask.zero_()
        return first, second, attention_function(layer, query, key, value, mask)[0]

    compiled = torch.compile(attend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(query, key, value, causal), attend(query, key, value, causal))
        causal = torch.zeros_like(causal).masked_fill(~visible_cells("window"), LOWEST)
    graphs = []
    explained = torch.compile(attend, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)
    explained(query, key, value, causal)
    assert str(graphs[0].graph).count("regard.masked_attention") == 3


@pytest.mark.slow
def test_a_mask_that_a_graph_writes_again():
    """In a process of its own, since torch cannot trace through the suite's shape checks."""
    result = run_script("from unit.hf import test_masked_attention as it\nit.check_masks_that_change()")
    assert result.returncode == 0, result.stderr[-3000:]

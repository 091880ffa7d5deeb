"""The forms in which torch's kernel takes masks on a GPU, run on a CPU, against a softmax under the dense mask."""

import pytest
import torch
from torch.testing import assert_close

from regard import masks
from regard.kernels.hardware import Hardware
from regard.kernels.implementations.sdpa import run_form
from regard.kernels.implementations.sdpa_form import Form, find_form
from regard.kernels.implementations.varlen import call_varlen, run_varlen
from regard.validation import make_request

BATCH, HEADS, KEY_HEADS, HEAD_DIM = 2, 4, 2, 11


def draw(queries, keys, value_dim=HEAD_DIM, dtype=torch.float64):
    shapes = ((HEADS, queries, HEAD_DIM), (KEY_HEADS, keys, HEAD_DIM), (KEY_HEADS, keys, value_dim))
    return [torch.randn(BATCH, *shape, dtype=dtype).requires_grad_() for shape in shapes]


def softmax_under(allowed, query, key, value, scale):
    """The softmax over the allowed keys, written out; 0 for rows without one."""
    key, value = (side.repeat_interleave(HEADS // KEY_HEADS, dim=1) for side in (key, value))
    scores = (scale * query @ key.mT).masked_fill(~allowed, -torch.inf)
    empty = ~allowed.any(-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return weights @ value


def assert_same_as_softmax(output, inputs, allowed, scale):
    expected = softmax_under(allowed, *inputs, scale)
    assert_close(output, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(output)
    actual = torch.autograd.grad(output, inputs, upstream, allow_unused=True, materialize_grads=True)
    assert_close(actual, torch.autograd.grad(expected, inputs, upstream), rtol=0, atol=1e-12)


def sequences_one_by_one(query, key, value, query_ends, key_ends, longest_query, longest_key, *, scale, enable_gqa):
    """What ``varlen_attn`` computes, one sequence after the other: tokens (total, heads, size)."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert query.shape[2] % 8 == 0
    outputs = []
    for place in range(len(query_ends) - 1):
        rows, columns = (slice(ends[place], ends[place + 1]) for ends in (query_ends, key_ends))
        assert rows.stop - rows.start <= longest_query
        assert 0 < columns.stop - columns.start <= longest_key
        group = query.shape[1] // key.shape[1]
        keys, values = (side[columns].repeat_interleave(group, dim=1) for side in (key, value))
        weights = (scale * torch.einsum("qhd,khd->hqk", query[rows], keys)).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


CASES = {
    "unmasked": (Form.UNMASKED, masks.window(200, 200), 131, 151),
    "one query": (Form.ONE_QUERY, masks.window(17, 0), 1, 151),
    "one query at the start": (Form.ONE_QUERY, masks.window(2, 5, align="start"), 1, 151),
    "causal": (Form.CAUSAL, masks.causal(), 131, 131),
    "causal from the start": (Form.CAUSAL, masks.causal(align="start"), 131, 151),
    "causal at the end": (Form.CAUSAL_END, masks.causal(), 131, 151),
    "a wide window at the end": (Form.CAUSAL_END, masks.window(150, 0), 131, 151),
    "dense": (Form.DENSE, masks.window(3, 5), 131, 151),
    "empty rows": (Form.DENSE, masks.causal(), 151, 131),
    "small": (Form.SMALL, masks.window(3, 5), 7, 151),
}


@pytest.mark.parametrize("scale", [0.4, -0.4, 0.0])
@pytest.mark.parametrize("name", CASES)
def test_every_form(name, scale):
    form, mask, queries, keys = CASES[name]
    inputs = draw(queries, keys, value_dim=13)
    request = make_request(*inputs, mask=mask, scale=scale)
    assert find_form(request.replace(hardware=Hardware("cuda", (9, 0), has_triton=True))) is form
    allowed = mask.dense(queries, keys).expand(BATCH, HEADS, queries, keys)
    assert_same_as_softmax(run_form(request, form), inputs, allowed, scale)


@pytest.mark.parametrize("queries", [131, 151])
@pytest.mark.parametrize(
    "mask",
    [
        masks.padding([151, 67]),
        masks.padding([67, 151], side="left"),
        masks.padding([0, 67]),
        masks.padding([0, 0]),
        masks.padding([67]),
        masks.padding([100, 151]) & masks.padding([120, 67], side="left"),
        masks.keep(torch.arange(302).view(2, 1, 1, 151) % 3 != 0),
    ],
    ids=repr,
)
def test_only_visible_keys_are_passed_on(mask, queries):
    keys = 151
    inputs = draw(queries, keys)
    allowed = mask.dense(queries, keys).expand(BATCH, HEADS, queries, keys)
    for scale in (0.4, -0.4):
        output = run_form(make_request(*inputs, mask=mask, scale=scale), Form.VARLEN, sequences_one_by_one)
        assert_same_as_softmax(output, inputs, allowed, scale)
    # Hidden keys hold anything, and have no influence on any bit.
    request = make_request(*inputs, mask=mask, scale=0.4)
    clean = run_varlen(request, sequences_one_by_one)
    hidden = ~allowed[:, :KEY_HEADS, 0, :, None]
    poisoned = [side.detach().masked_fill(hidden, torch.nan).requires_grad_() for side in inputs[1:]]
    output = run_varlen(request.replace(key=poisoned[0], value=poisoned[1]), sequences_one_by_one)
    assert torch.equal(output, clean)
    for gradient in torch.autograd.grad(output.sum(), poisoned, allow_unused=True, materialize_grads=True):
        assert not gradient[hidden.expand_as(gradient)].any()
        assert gradient.isfinite().all()


def test_torchs_operator_takes_these_arguments():
    """Its fake kernel runs on any machine: it checks names and types, and gives the shape of the result."""
    inputs = draw(131, 151, dtype=torch.bfloat16)
    shapes = []

    def on_meta(*tensors, **options):
        moved = (side.to("meta") if isinstance(side, torch.Tensor) else side for side in tensors)
        output = call_varlen(*moved, **options)
        shapes.append(tuple(output.shape))
        return torch.zeros(output.shape, dtype=output.dtype)

    with torch.no_grad():
        request = make_request(*inputs, mask=masks.padding([151, 0]))
        assert not run_varlen(request, on_meta).any()
    assert shapes == [(131, HEADS, 16)]


def test_a_packing_is_made_once(monkeypatch):
    mask, made = masks.padding([151, 67]), []
    request = make_request(*draw(131, 151), mask=mask)
    original = mask.dense
    monkeypatch.setattr(type(mask), "dense", lambda self, *sizes, **options: made.append(sizes) or original(*sizes))
    for _ in range(3):
        run_varlen(request, sequences_one_by_one)
    assert made == [(1, 151)]

"""Edge cases of attention: sizes of 0, shared keys with different masks per head, scores that overflow."""

import pytest
import torch

import regard
from capabilities import causal_or_none, scale_head_dim
from regard import masks, positions
from regard.errors import OptionError

IMPLS = ["reference", "native", "sdpa", "auto"]
SIZES = [(2, 3, 0, 7), (2, 3, 5, 0), (0, 3, 5, 7), (2, 3, 0, 0)]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "make",
    [
        lambda batch, queries, keys: None,
        lambda batch, queries, keys: masks.causal(),
        lambda batch, queries, keys: ~masks.window(1, 2) | masks.padding([keys] * batch),
        lambda batch, queries, keys: masks.random_blocks(1, block=2) & masks.global_tokens([0]),
        lambda batch, queries, keys: masks.documents(
            torch.zeros(batch, keys, dtype=torch.long), query_ids=torch.zeros(batch, queries, dtype=torch.long)
        ),
    ],
)
def test_sizes_of_0(impl, size, make):
    batch, heads, queries, keys = size
    query = torch.randn(batch, heads, queries, 5, requires_grad=True)
    key, value = torch.randn(batch, heads, keys, 5), torch.randn(batch, heads, keys, 2)
    mask = make(batch, queries, keys)
    output = regard.attention(query, key, value, mask=mask, impl=impl)
    assert output.shape == (batch, heads, queries, 2)
    assert keys or not output.any()
    output.sum().backward()
    assert query.grad is None or not query.grad.any() or keys
    observation = regard.observe(query, key, value, mask=mask, top=3)
    assert observation.top_keys.shape == (batch, heads, queries, 3)
    assert observation.received.shape == (batch, heads, keys)
    assert keys or (observation.lse == -torch.inf).all()
    tiles = (masks.causal() if mask is None else mask).tiles(queries, keys)
    assert tiles.dense().shape[2:] == (queries, keys)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.window(1, 2), masks.padding([3, 0])], ids=repr)
@pytest.mark.parametrize("bias", [False, True])
def test_no_query_heads(impl, dtype, mask, bias):
    """0 is a multiple of any number of key heads: the output is empty, and the gradients are 0."""
    query = torch.zeros(2, 0, 5, 7, dtype=dtype, requires_grad=True)
    key, value = (torch.randn(2, 3, 11, size, dtype=dtype, requires_grad=True) for size in (7, 2))
    added = torch.randn(1, 1, 5, 11, dtype=dtype, requires_grad=True) if bias else None
    output = regard.attention(query, key, value, mask=mask, bias=added, impl=impl)
    assert output.shape == (2, 0, 5, 2)
    assert output.dtype == dtype
    leaves = [query, key, value, *([added] if bias else [])]
    gradients = torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        assert gradient is None or (gradient.shape == leaf.shape and not gradient.any())


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("size", SIZES)
def test_gradients_for_sizes_of_0_are_zero(impl, size):
    """Also for a bias, which may have elements although there are no scores."""
    batch, heads, queries, keys = size
    query, key, value = (torch.randn(batch, heads, length, 7) for length in (queries, keys, keys))
    table = positions.T5Buckets(heads)
    by_key, everywhere = torch.randn(1, heads, 1, keys, requires_grad=True), torch.randn(1, 1, 1, 1, requires_grad=True)
    for bias in (by_key, everywhere, table):
        output = regard.attention(query, key, value, bias=bias, impl=impl)
        leaf = table.weight if bias is table else bias
        (gradient,) = torch.autograd.grad(output, leaf, torch.ones_like(output))
        assert not gradient.any()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("number", [torch.nan, torch.inf, 3e38])
def test_shared_key_masked_for_one_head_only(impl, number):
    allowed = torch.ones(1, 2, 1, 5, dtype=torch.bool)
    allowed[0, 0, 0, 3] = False
    query, key, value = torch.randn(1, 2, 5, 7), torch.randn(1, 1, 5, 7), torch.randn(1, 1, 5, 3)
    poisoned = value.clone()
    poisoned[:, :, 3] = number
    mask = masks.keep(allowed)
    clean, dirty = (regard.attention(query, key, side, mask=mask, impl=impl) for side in (value, poisoned))
    assert torch.equal(clean[:, 0], dirty[:, 0])
    assert not torch.equal(clean[:, 1], dirty[:, 1])


@pytest.mark.parametrize("impl", IMPLS)
def test_visible_nan_is_not_removed(impl):
    """The complement of promise 1: a visible NaN is not removed, and stays in its rows."""
    query, key, value = torch.randn(3, 1, 1, 5, 7)
    value = value.clone()
    value[0, 0, 2, 1] = torch.nan
    output = regard.attention(query, key, value, mask=masks.causal(), impl=impl)
    assert output[0, 0, 2:].isnan().any(-1).all()
    assert output[0, 0, :2].isfinite().all()
    observation = regard.observe(query, key, value, mask=masks.causal(), rows=[1, 3])
    assert observation.entropy[0, 0, 2:].isnan().all()
    assert observation.entropy[0, 0, :2].isfinite().all()
    assert observation.rows[0, 0, 0].isfinite().all()
    assert observation.rows[0, 0, 1, :4].isnan().all()
    assert not observation.rows[0, 0, 1, 4:].any()


@pytest.mark.parametrize("mechanism", [entry.name for entry in regard.catalogue()])
@pytest.mark.parametrize("overflowing", ["query", "key"])
def test_overflowing_scores_affect_only_their_rows(mechanism, overflowing):
    """Scores of finite numbers may overflow. Rows with such scores are NaN, but gradients of other rows are not."""
    torch.manual_seed(2)
    head_dim = scale_head_dim(mechanism, 5)
    layer = regard.mechanism(mechanism, heads=2, head_dim=head_dim)
    inputs = {name: torch.randn(1, 2, 7, head_dim) for name in ("query", "key", "value")}
    inputs[overflowing][:, :, 4] = 3e38 * (-1.0) ** torch.arange(head_dim)
    leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
    mask = causal_or_none(layer)
    output = layer(*leaves.values(), mask)
    safe = [0, 1, 2, 3, 5, 6] if overflowing == "query" else [] if mask is None else [0, 1, 2, 3]
    assert output[:, :, safe].isfinite().all()
    output[:, :, safe].sum().backward()
    for name, tensor in {**leaves, **dict(layer.named_parameters())}.items():
        assert tensor.grad is None or tensor.grad.isfinite().all(), name
    assert not leaves[overflowing].grad[:, :, 4].any()


def test_why_gives_a_reason_for_every_implementation():
    query = torch.randn(1, 2, 5, 7)
    for options in ({}, {"mask": masks.causal()}, {"bias": regard.positions.ShawRelative(7, 2)}, {"dropout": 0.1}):
        choice = regard.why(query, query, query, **options)
        assert set(choice.reasons) == {"reference", "native", "sdpa", "flex"}
        assert all(choice.reasons.values())
        assert str(choice).startswith(f"auto takes {choice.impl}: ")
        named = regard.attention(query, query, query, **{**options, "dropout": 0.0}, impl=choice.impl)
        assert torch.equal(regard.attention(query, query, query, **{**options, "dropout": 0.0}), named)
    assert regard.why(query, query, query, bias=regard.positions.ShawRelative(7, 2)).impl == "reference"


def test_why_explains_who_observes():
    query = torch.randn(1, 2, 5, 7)
    for options in ({}, {"mask": masks.causal(), "softcap": 2.0}, {"bias": regard.positions.ShawRelative(7, 2)}):
        choice = regard.why(query, query, query, **options, operation="observe")
        assert set(choice.reasons) == {"reference", "native", "sdpa", "flex", "triton"}
        assert all(choice.reasons.values())
        named = regard.observe(query, query, query, **options, impl=choice.impl)
        assert torch.equal(regard.observe(query, query, query, **options).entropy, named.entropy)
    assert choice.impl == "reference"
    assert "does not return its weights" in choice.reasons["sdpa"]
    with pytest.raises(OptionError, match="observe has no dropout"):
        regard.why(query, query, query, dropout=0.5, operation="observe")
    with pytest.raises(OptionError, match=r"(?s)operation.*attention.*observe.*'scan'"):
        regard.why(query, query, query, operation="scan")


@pytest.mark.parametrize("impl", IMPLS)
def test_inputs_are_not_changed(impl):
    inputs = [torch.randn(1, 2, 5, 7) for _ in range(3)]
    before = [tensor.clone() for tensor in inputs]
    regard.attention(*inputs, mask=masks.causal() & masks.padding([3]), impl=impl)
    regard.observe(*inputs, mask=masks.padding([3]))
    assert all(torch.equal(old, new) for old, new in zip(before, inputs, strict=True))


@pytest.mark.parametrize("impl", IMPLS)
def test_strided_tensors(impl):
    query, key, value = (torch.randn(2, length, 3, 5).transpose(1, 2) for length in (7, 11, 11))
    one = regard.attention(query, key, value, mask=masks.causal(), impl=impl)
    other = regard.attention(query.contiguous(), key.contiguous(), value.contiguous(), mask=masks.causal(), impl=impl)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)

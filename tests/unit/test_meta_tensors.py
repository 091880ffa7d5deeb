"""Tensors with a shape but no data, on the device "meta" and in FakeTensorMode: resulting shapes and dtypes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from capabilities import causal_or_none
from regard import masks, positions
from regard.errors import DtypeError, RefusedError
from regard.models import Bert, BertConfig, Recurrent, RecurrentConfig, Transformer, TransformerConfig
from regard.models.layer_mechanism import POSITIONS

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 3, 5, 7, 4, 6
MASKS = {
    "none": lambda: None,
    "causal": masks.causal,
    "padding": lambda: masks.padding([3, 7]),
    "cells": lambda: masks.keep(torch.rand(BATCH, 1, QUERIES, KEYS) > 0.3),
    "documents": lambda: masks.documents([0, 0, 1, 1, 1, 2, 2]),
    "random blocks": lambda: masks.random_blocks(1, block=2),
    "composed": lambda: ~(masks.causal() | masks.global_tokens([0])),
}
BIASES = {
    "none": lambda: None,
    "tensor": lambda: torch.randn(1, HEADS, QUERIES, KEYS, requires_grad=True),
    "ALiBi": lambda: positions.ALiBi(HEADS),
    "T5": lambda: positions.T5Buckets(HEADS),
    "Shaw": lambda: positions.ShawRelative(HEAD_DIM, 2, value_dim=VALUE_DIM),
}
CASES = [(mask, "none") for mask in MASKS] + [("causal", bias) for bias in BIASES if bias != "none"]
META_DEVICE = {"device": "meta"}
CASES_IN_EACH_DTYPE = [("none", "none"), ("causal", "tensor"), ("causal", "T5")]  # the others are marked slow


def in_each_dtype(first, *others):
    """All cases with the first dtype; with the other dtypes some of them are marked slow."""
    more = [(case, other) for case in CASES for other in others]
    return [
        *((*case, *first) for case in CASES),
        *((*case, *other) for case, other in more if case in CASES_IN_EACH_DTYPE),
        *(
            pytest.param(*case, *other, marks=pytest.mark.slow)
            for case, other in more
            if case not in CASES_IN_EACH_DTYPE
        ),
    ]


def tokens(dtype=torch.float32, **place):
    sizes = ((QUERIES, HEAD_DIM), (KEYS, HEAD_DIM), (KEYS, VALUE_DIM))
    heads = (HEADS, 1, 1)
    return [
        torch.randn(BATCH, of, *size, dtype=dtype, requires_grad=True, **place)
        for of, size in zip(heads, sizes, strict=True)
    ]


def to_meta(bias):
    if isinstance(bias, torch.Tensor):
        return bias.detach().to("meta").requires_grad_()
    return bias if bias is None else bias.to("meta")


@pytest.mark.parametrize("impl", ["auto", "reference", "sdpa"])
@pytest.mark.parametrize(
    ("mask", "bias", "dtype", "dropout"),
    in_each_dtype((torch.float32, 0.0), (torch.bfloat16, 0.5), (torch.float64, 0.0)),
)
def test_attention(mask, bias, impl, dtype, dropout):
    inputs, bias = tokens(dtype, **META_DEVICE), to_meta(BIASES[bias]())
    if impl == "sdpa" and isinstance(bias, positions.ShawRelative):
        impl = "auto"
    output = regard.attention(*inputs, mask=MASKS[mask](), bias=bias, dropout=dropout, impl=impl)
    assert (output.device.type, output.dtype, output.shape) == ("meta", dtype, (BATCH, HEADS, QUERIES, VALUE_DIM))
    output.sum().backward()
    assert all(tensor.grad.shape == tensor.shape and tensor.grad.is_meta for tensor in inputs)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize(("mask", "bias", "dtype"), in_each_dtype((torch.float32,), (torch.bfloat16,)))
def test_observe(mask, bias, impl, dtype):
    """The same shapes and dtypes as with real tensors."""
    made_mask, made_bias = MASKS[mask](), BIASES[bias]()
    there = regard.observe(*tokens(dtype), mask=made_mask, bias=made_bias, top=2, rows=[0, -1], impl=impl)
    nowhere = regard.observe(
        *tokens(dtype, **META_DEVICE), mask=made_mask, bias=to_meta(made_bias), top=2, rows=[0, -1], impl=impl
    )
    for name, tensor in vars(there).items():
        actual = getattr(nowhere, name)
        if tensor is None:  # the weight of a sink, without sinks
            assert actual is None, name
            continue
        assert (actual.shape, actual.dtype, actual.is_meta) == (tensor.shape, tensor.dtype, True), name


def test_native_refuses_meta_tensors():
    with pytest.raises(RefusedError, match="native runs on a CPU, and the tensors are on meta"):
        regard.attention(*tokens(**META_DEVICE), impl="native")


@pytest.mark.parametrize("row", regard.catalogue(), ids=lambda row: row.name)
def test_mechanisms(row):
    dropout = {"dropout": 0.1} if "dropout" in row.options else {}
    mechanism = regard.mechanism(row.name, heads=HEADS, head_dim=HEAD_DIM, **dropout).to("meta")
    query, key, value = tokens(**META_DEVICE)
    causal = causal_or_none(mechanism)
    mask = masks.padding([3, 7]) if causal is None else causal & masks.padding([3, 7])
    assert mechanism(query, key, value, mask).shape == (BATCH, HEADS, QUERIES, VALUE_DIM)
    assert mechanism.weights(query, key, mask=mask, rows=[0, -1]).shape == (BATCH, HEADS, 2, KEYS)


@pytest.mark.parametrize("position", [None, positions.Rotary(4), positions.ALiBi(3), positions.T5Buckets(3)])
def test_layers(position):
    layer = regard.MultiHeadAttention(12, 3, position=position).to("meta")
    inputs = torch.randn(BATCH, KEYS, 12, device="meta", requires_grad=True)
    layer(inputs, mask=masks.causal()).sum().backward()
    assert inputs.grad.shape == inputs.shape
    with pytest.raises(DtypeError, match="different dtypes"):
        layer(inputs.double())


@pytest.mark.parametrize("position", POSITIONS)
def test_transformers(position):
    sizes = {"vocabulary": 11, "layers": 1, "width": 8, "heads": 2, "inner": 8}
    with torch.device("meta"):
        model = Transformer(TransformerConfig(position=position, **sizes))
        source, target = torch.zeros(BATCH, KEYS, dtype=torch.long), torch.zeros(BATCH, QUERIES, dtype=torch.long)
        assert model(source, target).logits.shape == (BATCH, QUERIES, 11)


@pytest.mark.parametrize("attention", ["additive", "luong_general", "local_p", "none"])
def test_recurrent_models(attention):
    with torch.device("meta"):
        model = Recurrent(RecurrentConfig(vocabulary=11, width=8, hidden=8, attention=attention))
        source, target = torch.zeros(BATCH, KEYS, dtype=torch.long), torch.zeros(BATCH, QUERIES, dtype=torch.long)
        assert model(source, target).logits.shape == (BATCH, QUERIES, 11)


def test_bert():
    mask = masks.padding([3, 7])
    with torch.device("meta"):
        model = Bert(BertConfig(vocabulary=11, width=8, layers=1, heads=2, inner=8))
        assert model(torch.zeros(BATCH, KEYS, dtype=torch.long), mask=mask).hidden.shape == (BATCH, KEYS, 8)


@pytest.mark.parametrize("impl", ["auto", "native", "reference", "sdpa"])
@pytest.mark.parametrize(("mask", "bias"), CASES)
def test_fake_tensors(mask, bias, impl):
    made_mask, made_bias = MASKS[mask](), BIASES[bias]()
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = tokens()
        if impl == "sdpa" or (impl == "native" and bias == "Shaw"):
            with pytest.raises(RefusedError, match=r"no.* number|has none|needs the queries"):
                regard.attention(*inputs, mask=made_mask, bias=made_bias, impl=impl)
            return
        output = regard.attention(*inputs, mask=made_mask, bias=made_bias, impl=impl)
        observation = regard.observe(*inputs, mask=made_mask, bias=made_bias, top=2, rows=[0, -1], impl=impl)
        assert output.shape == observation.output.shape == (BATCH, HEADS, QUERIES, VALUE_DIM)
        assert observation.rows.shape == (BATCH, HEADS, 2, KEYS)

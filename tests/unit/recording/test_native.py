"""``regard.record(model, impl="native")``: attention of other models, computed by regard's kernels."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import regard
from regard.errors import OptionError
from regard.recording import native_attention
from unit.recording.test_any_module import (
    HEADS,
    LENGTH,
    WIDTH,
    Model,
    check,
    fused,
    fused_bias,
    fused_bool_mask,
    matmul,
)


@pytest.fixture
def computed(monkeypatch):
    """The numbers of calls that regard's kernels computed, and of those that they did not."""
    counts, compute = [], native_attention._compute

    def count(operation, call):
        result = compute(operation, call)
        counts.append(not isinstance(result, str))
        return result

    monkeypatch.setattr(native_attention, "_compute", count)
    return counts


FORMS = [fused, fused_bool_mask, fused_bias]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_outputs_and_gradients_differ_by_rounding(form, dtype, computed):
    model, tokens = Model(form).to(dtype), torch.randn(2, LENGTH, WIDTH, dtype=dtype)
    plain_model, results = copy.deepcopy(model), []
    for trained in (plain_model, model):
        if trained is model:
            with regard.record(model, impl="native") as recording:
                output = model(tokens)
        else:
            output = trained(tokens)
        output.square().sum().backward()
        results.append([output.detach(), *(parameter.grad for parameter in trained.parameters())])
    assert computed == [True, True]
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 0.1}[dtype]
    for expected, found in zip(*results, strict=True):
        assert_close(found, expected, rtol=tolerance, atol=tolerance * max(1.0, float(expected.abs().max())))
    if dtype == torch.float32:
        with torch.no_grad():
            check(plain_model, tokens, recording)


@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, groups, computed):
    model, tokens = Model(fused, groups=groups).eval(), torch.randn(2, LENGTH, WIDTH)
    with mode():
        plain = model(tokens)
        with regard.record(model, impl="native") as recording:
            assert_close(model(tokens), plain, atol=1e-5, rtol=0)
    assert computed == [True, True]
    assert len(recording) == 2


def test_multi_head_attention(computed):
    layer, tokens = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), torch.randn(2, LENGTH, WIDTH)
    hidden = torch.tensor([[False] * LENGTH, [False] * 4 + [True] * 3])
    plain = layer(tokens, tokens, tokens, key_padding_mask=hidden, need_weights=False)[0]
    with regard.record(layer, impl="native"):
        output = layer(tokens, tokens, tokens, key_padding_mask=hidden, need_weights=False)[0]
    assert computed == [True]
    assert_close(output, plain, atol=1e-5, rtol=0)


def test_others_are_left_to_torch_and_named(caplog, computed):
    model = nn.ModuleDict({"first": Model(matmul), "second": Model(fused)})
    model.forward = lambda tokens: model["second"](model["first"](tokens))
    model, tokens = model.eval(), torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad():
        plain = model(tokens)
        with caplog.at_level(logging.WARNING, "regard"), regard.record(model, impl="native") as recording:
            assert_close(model(tokens), plain, atol=1e-5, rtol=0)
    assert len(recording) == 4
    assert computed == [True, True]
    assert "computed by torch: first.layers.0, first.layers.1 (written by hand, or written out by torch)" in caplog.text
    assert "second" not in caplog.text


def test_queries_without_keys_and_fast_paths(caplog):
    def empty(layer, query, key, value):
        visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        visible[3] = False
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), 1).eval()
    tokens = torch.randn(2, LENGTH, WIDTH)
    for model, reason in (
        (Model(empty).eval(), "layers.0, layers.1 (a query may attend to no key)"),
        (encoder, "layers.0.self_attn (only scaled_dot_product_attention on a CPU is replaced)"),
    ):
        caplog.clear()
        with torch.no_grad():
            plain = model(tokens)
            with caplog.at_level(logging.WARNING, "regard"), regard.record(model, impl="native"):
                assert torch.equal(model(tokens), plain)
        assert reason in caplog.text


def test_another_implementation_is_refused():
    with pytest.raises(OptionError, match="unknown impl 'fast'"), regard.record(Model(fused), impl="fast"):
        pass

"""Linear layers with int8 weights: rounding bounds, both ways to compute, and models with them."""

import copy

import pytest
import torch
from torch import nn

from regard.errors import OptionError, RefusedError
from regard.generation import Generator
from regard.layers.quantized_linear import Int4Linear, Int8Linear
from regard.models.gpt2 import Gpt2, Gpt2Config
from regard.models.t5 import T5
from regard.models.t5_config import T5Config
from regard.models.weight_formats import convert_weights
from small_language_models import language_model


def make_model():
    return Gpt2(Gpt2Config(vocabulary=193, width=68, layers=2, heads=2, max_length=31)).eval()


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear])
def test_rounding_is_at_most_half_a_step(form):
    """Of int4 in the mean of a group; and scales and minima are rounded to bfloat16, which moves weights by more."""
    linear = nn.Linear(197, 31)
    with torch.no_grad():
        linear.weight[3] = 0.0
        linear.weight[5] *= 1e-30
        linear.weight[7, :64] = 0.25
    stored, weight = form.from_linear(linear), linear.weight.detach().double()
    error = (stored.dense_weight().double() - weight).abs()
    for first in range(0, 197, 64):
        part = weight[:, first : first + 64]
        least, most = part.aminmax(dim=1, keepdim=True)
        if form is Int8Linear:
            bound = part.abs().amax(1, keepdim=True) / 127 * 0.5 * (1 + 2**-7)
            assert (error[:, first : first + 64] <= bound).all()
        else:
            bound = (most - least) / 15 * 0.5 + 2**-9 * (2 * least.abs() + (most - least)) + 1e-36
            of_group = error[:, first : first + 64]
            if part.shape[1] == 64:
                assert (of_group.square().mean(1, keepdim=True) <= bound.square()).all()
            assert (of_group <= bound + (most - least) / 8).all()  # where the ends of the range are left out
    assert not stored.dense_weight()[3].any()


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 97])
@torch.no_grad()
def test_result_is_near_that_of_the_stored_weights(rows, dtype, form):
    """Tokens are rounded to bytes: each by at most half of 1 / 127 of the largest one of its token."""
    stored = form.from_linear(nn.Linear(331, 367).to(dtype))
    tokens = torch.randn(rows, 331).to(dtype)
    matrix = stored.dense_weight().double()
    expected = tokens.double() @ matrix.T + stored.bias.double()
    size = tokens.double().abs() @ matrix.abs().T + stored.bias.double().abs()
    of_tokens = tokens.double().abs().amax(1, keepdim=True) / 254 * matrix.abs().sum(1)
    found = stored(tokens)
    assert found.dtype == dtype
    assert ((found.double() - expected).abs() <= of_tokens + torch.finfo(dtype).eps * size + 337 * 2**-23 * size).all()
    assert (found.double() - expected).norm() <= 0.01 * expected.norm()


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear])
def test_gradients_of_tokens_are_those_of_the_stored_weights(form):
    stored, tokens = form.from_linear(nn.Linear(67, 5)), torch.randn(3, 67, requires_grad=True)
    stored(tokens).sum().backward()
    torch.testing.assert_close(tokens.grad, stored.dense_weight().sum(0).expand(3, 67))


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(bad, form):
    linear = nn.Linear(7, 5)
    with torch.no_grad():
        linear.weight[3, 2] = bad
    with pytest.raises(RefusedError, match=f"NaN or infinite cannot be stored as {form.format_name}"):
        form.from_linear(linear)


@pytest.mark.parametrize(("weights", "error"), [("int8", 0.03), ("int4", 0.3)])
@torch.no_grad()
def test_model_decodes_as_it_reads(weights, error):
    """Steps with a cache, and the whole text at once, compute with the same weights."""
    model, ids = make_model(), torch.arange(3 * 23).view(3, 23) % 193
    exact = model(ids).logits
    convert_weights(model, weights)
    whole = model(ids).logits
    tokens, state = model.prefill(ids)
    logits, _ = model.step(tokens, state)
    torch.testing.assert_close(logits, whole[:, -1], atol=1e-5, rtol=1e-4)
    assert 0 < (whole - exact).norm() / exact.norm() < error


def test_what_is_converted():
    model = make_model()
    convert_weights(model, "int8")
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert isinstance(model.output, Int8Linear)
    assert model.token_embedding.weight.dtype == torch.float32
    assert "in_features=68, out_features=193" in repr(model.output)


def test_router_of_experts_is_not_converted():
    model = make_model()
    model.layers[0].router = nn.Linear(68, 4)
    convert_weights(model, "int8")
    assert type(model.layers[0].router) is nn.Linear


@torch.no_grad()
def test_pages_hold_keys_and_values_in_the_dtype_of_the_tokens():
    model = language_model("gpt2")
    for dtype in (torch.float32, torch.bfloat16):
        converted = copy.deepcopy(model).to(dtype)
        convert_weights(converted, "int8")
        prompts = ["the cat sees", "the cat sees the dog", "a horse"]
        alone = [Generator(converted).generate([prompt], max_tokens=7)[0][0].text for prompt in prompts]
        together = Generator(converted).generate(prompts, max_tokens=7)
        if dtype is torch.float32:  # bfloat16 rounds sums of other sizes differently
            assert [found.text for (found,) in together] == alone
        assert converted.page_pool(page_size=3).key.dtype == dtype


@pytest.mark.parametrize("part", ["model", "encoder"])
def test_a_t5_with_int8_weights_is_not_saved(tmp_path, part):
    model = T5(T5Config(vocabulary=29, width=12, layers=1, heads=3, head_dim=4, inner=7)).eval()
    convert_weights(model, "int8")
    saved = model if part == "model" else model.encoder
    with pytest.raises(RefusedError, match="with int8 weights cannot be saved"):
        saved.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_refusals(tmp_path):
    model = make_model()
    with pytest.raises(OptionError, match="format of weights"):
        convert_weights(model, "int3")
    with pytest.raises(RefusedError, match="in training"):
        convert_weights(model.train(), "int8")
    convert_weights(model.eval(), "int8")
    with pytest.raises(RefusedError, match="cannot be saved"):
        model.save(tmp_path / "model")

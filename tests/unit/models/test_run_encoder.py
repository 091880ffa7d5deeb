"""Encoders in one native call: equal to float64, with the states between layers, and blocks where those are needed."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.kernels.extension import native
from regard.kernels.support import is_portable
from regard.layers import stack_step, sublayer_step
from regard.models.bert import Bert, BertConfig
from regard.models.clip_text import ClipText, ClipTextConfig
from regard.models.transformer_encoder import TransformerEncoder, TransformerEncoderConfig
from regard.models.vit import Vit, VitConfig
from regard.models.weight_formats import convert_weights

pytestmark = pytest.mark.skipif(native is None or is_portable(), reason="modules are used without vector instructions")

SIZES = {"width": 20, "layers": 3, "heads": 2, "inner": 34}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 6e-2}


def make_text_model(kind):
    sizes = {**SIZES, "vocabulary": 31, "max_length": 530}
    if kind == "bert":
        return Bert(BertConfig(**sizes))
    if kind == "clip":
        return ClipText(ClipTextConfig(**sizes, end_id=1, pad_id=0, start_id=None, activation="gelu"))
    return TransformerEncoder(TransformerEncoderConfig(**sizes, norm=kind.split()[0], position=kind.split()[1]))


TEXT_MODELS = ("bert", "pre sinusoidal", "post sinusoidal", "pre rotary")


@pytest.fixture
def calls(monkeypatch):
    """The number of layers of each native call."""
    found = []

    def count(stack, tokens, steps, logits, compute=stack_step.compute_stack):
        found.append(len(steps))
        return compute(stack, tokens, steps, logits)

    monkeypatch.setattr(stack_step, "compute_stack", count)
    monkeypatch.setattr(sublayer_step, "multiplies_many", lambda dtype: True)  # also where libraries are faster
    return found


def draw_ids(batch, length):
    return torch.randint(2, 31, (batch, length), generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def check(model, *inputs, dtype=torch.float32, mask=None):
    """Compare all states with those of the modules in float64."""
    model = model.eval().to(dtype)
    found = model(*(one.to(dtype) if one.is_floating_point() else one for one in inputs), mask=mask, keep_layers=True)
    exact = deepcopy(model).double()
    expected = exact(*(one.double() if one.is_floating_point() else one for one in inputs), mask=mask, keep_layers=True)
    assert len(found.layers) == SIZES["layers"] + 1
    for mine, theirs in zip((found.hidden, *found.layers), (expected.hidden, *expected.layers), strict=True):
        assert (mine.double() - theirs).abs().max() <= TOLERANCE[dtype] * theirs.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", TEXT_MODELS)
@pytest.mark.parametrize("length", [1, 5, 17, 131])
def test_texts(calls, kind, length, dtype):
    check(make_text_model(kind), draw_ids(1, length), dtype=dtype)
    assert calls == [3]


@pytest.mark.parametrize("kind", TEXT_MODELS)
def test_padded_texts_of_a_batch(calls, kind):
    check(make_text_model(kind), draw_ids(3, 19), mask=masks.padding([19, 7, 1]))
    assert calls == [3]


def test_causal_texts(calls):
    ids = draw_ids(2, 9)
    ids[:, -1] = 1
    check(make_text_model("clip"), ids)
    assert calls == [3]


def test_pictures(calls):
    model = Vit(VitConfig(**SIZES, picture_size=(6, 9), patch_size=(3, 3), labels=("one", "two")))
    check(model, torch.randn(2, 3, 6, 9))
    assert calls == [3]


@pytest.mark.parametrize(("length", "number"), [(512, 1), (513, 0)])
def test_many_tokens_are_computed_block_by_block(calls, length, number):
    with torch.no_grad():
        make_text_model("bert").eval()(draw_ids(1, length))
    assert len(calls) == number


@torch.no_grad()
def test_weights_of_few_bits(calls):
    model = make_text_model("bert").eval()
    convert_weights(model, "int8")
    ids = draw_ids(2, 11)
    found = model(ids).hidden
    assert calls == [3]
    model.layers[0].register_forward_hook(lambda *_: None)
    expected = model(ids).hidden
    assert calls == [3]
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@torch.no_grad()
def test_what_changes_a_layer_is_seen(calls):
    model, ids = make_text_model("bert").eval(), draw_ids(1, 7)
    first = model(ids).hidden
    model.layers[1].feed_forward.up.weight.mul_(2)
    second = model(ids).hidden
    assert not torch.equal(first, second)
    model.layers[1].feed_forward.up = nn.Linear(SIZES["width"], SIZES["inner"])
    assert not torch.equal(model(ids).hidden, second)
    assert calls == [3, 3, 3]
    seen = []
    handle = model.layers[2].register_forward_hook(lambda *_: seen.append(1))
    model(ids)
    assert seen == [1]
    handle.remove()
    with regard.record(model) as recording:
        model(ids)
    assert len(recording) == SIZES["layers"]
    assert calls == [3, 3, 3]


@torch.no_grad()
def test_hidden_tokens_have_no_influence(calls):
    model, ids = make_text_model("bert").eval(), draw_ids(2, 23)
    outputs = []
    for number in (2, 3):
        ids[0, 5:] = number
        outputs.append(model(ids, mask=masks.padding([5, 23])).hidden)
    assert torch.equal(outputs[0][0, :5], outputs[1][0, :5])
    assert torch.equal(outputs[0][1], outputs[1][1])
    assert len(calls) == 2

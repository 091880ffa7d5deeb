"""What models share: published sizes, gradients, hidden tokens and other rows without influence, layers, bad input."""

import inspect
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

import regard
from causal_parity import assert_search_of_each_alone
from every_model import EXAMPLES, make_example
from regard import masks, models
from regard.errors import CheckpointError, DtypeError, OptionError, RefusedError, ShapeError
from regard.models import Gpt2, Llama
from regard.models.config_file import ConfigFile
from regard.models.load import _MODELS
from regard.models.t5_config import MODEL_TYPES as T5_TYPES
from regard.search import Beam, Greedy

SIZES = {
    # Turc et al. 2019, table 1; Devlin et al. 2019, section 3; Wang et al. 2020, table 1
    "bert_tiny": 4.4, "bert_mini": 11.3, "bert_small": 29.1, "bert_base": 110, "minilm": 22,
    # Vaswani et al. 2017, table 3, which counts 37,000 tokens and rounds
    "transformer_base": 65, "transformer_big": 213,
    # Liu et al. 2019, section 5; the model card of XLM-R base; Warner et al. 2024, section 2.1.3, without the head
    "roberta_base": 125, "roberta_large": 355, "xlm_roberta_base": 278, "modernbert_base": 149, "modernbert_large": 395,
    # the released models; papers or model cards
    "gpt2_small": 124, "gpt2_medium": 355, "gpt2_large": 774, "gpt2_xl": 1558,
    "llama_3_1_8b": 8030, "llama_3_2_1b": 1236, "mistral_7b": 7242, "qwen_2_5_0_5b": 494, "qwen_3_0_6b": 596,
    "gemma_2_2b": 2614, "gemma_3_1b": 1000,
    # weights, and not millions of them, in the published files, without copies
    "t5_small": 60_506_624, "t5_base": 222_903_552, "t5_large": 737_668_096, "t5_1_1_small": 76_961_152,
    "t5_1_1_base": 247_577_856, "t5_1_1_large": 783_150_080, "mt5_small": 300_176_768, "mt5_base": 582_401_280,
    # with 1,000 labels, as published with the weights: a DeiT has two heads
    "vit_tiny": 5.7, "vit_small": 22.1, "vit_base": 86.6, "vit_large": 304.3,
    "deit_tiny": 5.9, "deit_small": 22.4, "deit_base": 87.3,
    # Liu et al. 2021, table 1, with a head of 1,000 labels; Wu et al. 2021, table 3, has 20 and 32
    "swin_tiny": 28.3, "swin_small": 49.6, "swin_base": 87.8, "cvt_13": 20.0, "cvt_21": 31.6,
    # Hassani et al. 2021, table 1, for CIFAR-10
    "cct_2_3x2": 0.28, "cct_7_3x1": 3.76,
    # the published models
    "clip_vit_base_32": 151.3, "clip_vit_base_16": 149.6, "clip_vit_large_14": 427.6,
}  # fmt: skip
"""Millions of weights, as published, by the function that builds the model."""
ROUNDING = {"bert": 0.04, "minilm": 0.04, "transformer": 0.04}
"""Error of published sizes, relative to them, by the beginning of a name; else of the last digit above."""
SLOW = {"gpt2_medium", "gpt2_large", "gpt2_xl", "llama_3_1_8b", "qwen_3_0_6b", "t5_base", "t5_large", "t5_1_1_base",
        "t5_1_1_large", "mt5_base", "swin_small", "swin_base", "clip_vit_large_14"}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else []) for one in SIZES])
def test_published_sizes(name):
    build, published = getattr(models, name, None) or getattr(models.bert, name), SIZES[name]
    labels = 10 if name.startswith("cct") else 1000
    with torch.device("meta"):
        model = build(tuple(map(str, range(labels)))) if "labels" in inspect.signature(build).parameters else build()
    count = sum(weight.numel() for weight in model.parameters())
    if published > 10**6:
        assert count == published
    else:
        digits = len(str(published).partition(".")[2])
        relative = ROUNDING.get(name.partition("_")[0])
        assert abs(count / 1e6 - published) <= (0.5 * 10.0**-digits if relative is None else relative * published)


def builders_with_labels():
    functions = {name: getattr(models, name) for name in models.__all__ if inspect.isfunction(getattr(models, name))}
    return [name for name, build in functions.items() if "labels" in inspect.signature(build).parameters]


@pytest.mark.parametrize("name", builders_with_labels())
def test_builders_keep_their_labels(name):
    with torch.device("meta"):
        assert getattr(models, name)(("owl", "cat")).labels == ("owl", "cat")


@pytest.fixture(params=EXAMPLES, ids=lambda kind: kind.__name__)
def example(request):
    return make_example(request.param)


def test_every_weight_gets_a_gradient(example):
    model, inputs, compute = example
    compute(model, inputs).square().sum().backward()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name
            assert weight.grad.any() or isinstance(model, models.Cvt), name  # whose last queries are one token


def spoil_first_row(inputs):
    """Inputs of which the first row is other tokens, or NaN."""
    if isinstance(inputs, list):
        return [inputs[1], *inputs[1:]]
    spoiled = [part.clone() for part in inputs]
    for part in spoiled:
        part[0] = torch.nan if part.is_floating_point() else part[0].roll(1) if len(spoiled) > 1 else part[1]
    return tuple(spoiled)


@torch.no_grad()
def test_rows_of_a_batch_are_independent(example):
    model, inputs, compute = example
    model.eval()
    expected, found = compute(model, inputs), compute(model, spoil_first_row(inputs))
    assert torch.equal(found[1:], expected[1:])
    assert not torch.equal(found[0], expected[0])


WITHOUT_MASKS = {"Swin": "merge tokens", "Cvt": "mix neighbouring tokens", "Cct": "mix the pixels"}
READERS = [kind for kind in EXAMPLES if kind.__name__ not in ("Gato", "Clip", "Conformer", "Perceiver")]


def names_of(kinds):
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


PADDED_ON_THE_RIGHT = (models.Recurrent, models.TextClassifier, models.ClipText)


@names_of([kind for kind in READERS if not issubclass(kind, models.ImageEncoder)])
@torch.no_grad()
def test_hidden_tokens_have_no_influence(kind):
    for side in ("right",) if kind in PADDED_ON_THE_RIGHT else ("right", "left"):
        assert_hidden_tokens_have_no_influence(kind, side)


def assert_hidden_tokens_have_no_influence(kind, side):
    model, (ids, *target), _ = make_example(kind)
    model.eval()
    lengths = torch.tensor([ids.shape[1], 5, 3, 2, 1])
    if kind is models.ClipText:  # the embedding is that of the end token
        ids[torch.arange(len(ids)), lengths - 1] = model.config.end_id
    hidden = torch.arange(ids.shape[1]) >= lengths[:, None]
    hidden = hidden.flip(1) if side == "left" else hidden
    results = []
    for tokens in (ids, torch.where(hidden, 5 + ids % 7, ids)):
        found = model(tokens, *target, mask=masks.padding(lengths, side=side))
        results.append([found.hidden, *([found.logits] if hasattr(found, "logits") else [])])
    for one, other in zip(*results, strict=True):
        if one is not None:
            visible = ~hidden if one.shape[:2] == hidden.shape and not target else ...
            assert torch.equal(one[visible], other[visible])


@names_of([Gpt2, Llama])
@torch.no_grad()
def test_later_tokens_have_no_influence(kind):
    model, (ids,), _ = make_example(kind)
    model.eval()
    later = ids.clone()
    later[:, 5:] = 4 + ids[:, 5:] % 7
    assert torch.equal(model(ids).logits[:, :5], model(later).logits[:, :5])


@names_of([Gpt2, Llama])
@pytest.mark.parametrize("search", [Greedy(), Beam(3)])
def test_search_continues_prompts_of_different_lengths_as_each_alone(kind, search):
    assert_search_of_each_alone(make_example(kind)[0].eval(), search)


@names_of([models.Bert, models.Roberta, models.ModernBert, Gpt2, Llama, models.Vit, models.Deit, models.ClipVision])
@torch.no_grad()
def test_layers_are_recorded_and_kept(kind):
    model, inputs, _ = make_example(kind)
    model.eval()
    with regard.record(model) as recording:
        output = model(*inputs, keep_layers=True)
    assert [call.name for call in recording] == ["layers.0.attention", "layers.1.attention"]
    length = output.hidden.shape[1]
    assert recording[0].query.shape == (5, 2, length, model.width // 2)
    assert recording[0].key.shape[1] == getattr(model.config, "key_value_heads", 2)
    weights = recording[0].weights()
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, 2, length))
    assert torch.equal(weights, weights.tril()) == (kind in (Gpt2, Llama))
    assert [layer.shape for layer in output.layers] == [(5, length, model.width)] * 3
    assert output.layers[-1] is output.hidden or issubclass(kind, models.ImageEncoder)  # which end with a norm
    assert model(*inputs).layers is None


# Published files

NEEDED = {"gemma3", "mistral3", "perceiver"}
"""Types whose files say what a default config does not: the part that is read, or the inputs and outputs."""
IDS = {"bos_token_id", "eos_token_id", "pad_token_id", "text_config"}
READ_OTHERWISE = {
    **dict.fromkeys(("llama", "mistral", "phi3", "gemma2", "gemma3_text", "gpt_oss"), IDS),
    **dict.fromkeys(("clip", "clip_text_model"), IDS),  # without an id there is no such token
    **{kind: {"num_decoder_layers"} for kind in T5_TYPES},  # as many as the encoder's
}


@pytest.mark.parametrize("kind", [kind for kind in _MODELS if not kind.startswith("regard-") and kind not in NEEDED])
def test_fields_that_a_file_leaves_out_have_the_defaults_of_transformers(kind):
    stated = json.loads(AutoConfig.for_model(kind).to_json_string(use_diff=False)) | {"model_type": kind}
    config_class = _MODELS[kind].config_class

    def read(fields):
        more = {"tied": True} if config_class is models.T5Config else {}
        return config_class.from_hugging_face(ConfigFile(fields, Path("config.json")), **more)

    expected, refused = read(stated), {}
    for left_out in stated.keys() - READ_OTHERWISE.get(kind, set()) - {"model_type"}:
        try:
            assert read({name: value for name, value in stated.items() if name != left_out}) == expected, left_out
        except CheckpointError as error:
            refused[left_out] = str(error)
    assert len(refused) <= 8
    assert all(name in message for name, message in refused.items())
    needed = refused.keys() | READ_OTHERWISE.get(kind, set()) | {"model_type"}
    assert read({name: value for name, value in stated.items() if name in needed}) == expected


# Bad input


@names_of([kind for kind in READERS if issubclass(kind, models.ImageEncoder)])
def test_wrong_pixels_are_refused(kind, without_shape_checks):
    model, (pixels,), _ = make_example(kind)
    with pytest.raises(ShapeError, match=r"(?s)(wrong shape|do not fit the model).*\(batch, 3, height, width\)"):
        model(pixels[:, :2])
    with pytest.raises(DtypeError, match="normalise"):
        model(pixels.to(torch.uint8))
    with pytest.raises((OptionError, ShapeError)):
        model(pixels[:, :, :0])
    if kind.__name__ in WITHOUT_MASKS:
        with pytest.raises(RefusedError, match=rf"(?s)takes no mask.*{WITHOUT_MASKS[kind.__name__]}.*use a ViT"):
            model(pixels, mask=masks.causal())


@names_of([kind for kind in READERS if not issubclass(kind, models.ImageEncoder)])
def test_wrong_ids_are_refused(kind, without_shape_checks):
    model, (ids, *others), _ = make_example(kind)
    with pytest.raises(ShapeError):
        model(ids[0], *others)
    if kind is not models.Transformer:
        with pytest.raises(ShapeError):
            model(ids[:, :0], *others)
    with pytest.raises(DtypeError, match="float32"):
        model(ids.float(), *others)
    for wrong in (10**6, -1):
        with pytest.raises(OptionError, match=r"out of range|0 to"):
            model(torch.full_like(ids, wrong), *others)

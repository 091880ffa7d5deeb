"""Exported folders, opened by the Auto classes of ``transformers``: the same tokens, pixels and logits."""

import json

import pytest
import torch
import transformers
from PIL import Image

from picture_files import random_pixels
from regard.errors import OptionError, OutputExistsError, RefusedError
from regard.export import FORMS, export
from regard.models import (
    Clip,
    Deit,
    DeitConfig,
    Perceiver,
    PixelInput,
    Swin,
    SwinConfig,
    TextClassifier,
    TextClassifierConfig,
    load,
)
from small_classifiers import classifier
from small_clips import small_clip
from small_image_models import _fill, image_classifier, small_cct, small_cvt
from small_language_models import language_model
from small_masked_language_models import masked_language_model
from small_t5 import save_t5
from small_translators import transformer

LABELS = ("animal", "plant", "vehicle")
TEXTS = ["No. 7", "0: the cat sees the dog.\n1: a train waits.", "the car runs there, the old oak falls " * 5]
AGREES = {"atol": 2e-5, "rtol": 2e-5}


def sequence_classifier(kind="bert", *, pooling="cls", several=False, limit=31, **options):
    """A classifier with the encoder of a masked language model, with random weights."""
    encoder = masked_language_model(kind, head=False, **options)
    config = TextClassifierConfig(LABELS, several, pooling, dropout=0.2, max_tokens=limit)
    model = TextClassifier(encoder, config).eval()
    with torch.no_grad():
        model.head.weight += torch.randn_like(model.head.weight)
        model.head.bias += torch.randn_like(model.head.bias)
    return model


def logits_here(model, texts):
    batch = model.tokenizer.encode(texts, truncate=True)
    with torch.no_grad():
        return batch, model(batch.ids, mask=batch.mask).logits


class TestTexts:
    @pytest.mark.parametrize("several", [False, True])
    @pytest.mark.parametrize(
        ("kind", "options", "name"),
        [
            ("bert", {}, "BertForSequenceClassification"),
            ("roberta", {}, "RobertaForSequenceClassification"),
            ("roberta", {"model_type": "camembert"}, "CamembertForSequenceClassification"),
            ("roberta", {"model_type": "xlm-roberta", "pad_id": 1}, "XLMRobertaForSequenceClassification"),
        ],
    )
    def test_classifiers_of_the_first_token(self, tmp_path, kind, options, name, several):
        model = sequence_classifier(kind, several=several, **options)
        export(model, tmp_path / "out", form="transformers")
        theirs, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
            tmp_path / "out", output_loading_info=True
        )
        assert not any(loading.values())
        assert type(theirs).__name__ == name
        assert tuple(theirs.config.id2label.values()) == LABELS
        kind = "multi_label_classification" if several else "single_label_classification"
        assert theirs.config.problem_type == kind
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        assert tokenizer.model_max_length == 31
        batch, ours = logits_here(model, TEXTS)
        read = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
        assert torch.equal(read["input_ids"], batch.ids)
        with torch.no_grad():
            torch.testing.assert_close(theirs.eval()(**read).logits, ours, **AGREES)

    def test_large_hidden_states(self, tmp_path):
        """The pooler of transformers is a tanh, which must stay linear whatever the last norm multiplies by."""
        model = sequence_classifier()
        with torch.no_grad():
            model.encoder.layers[-1].feed_forward_residual.norm.weight *= 1000.0
        export(model, tmp_path / "out", form="transformers")
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
        batch, ours = logits_here(model, TEXTS)
        with torch.no_grad():
            mask = torch.arange(batch.ids.shape[1]) < torch.tensor(batch.lengths)[:, None]
            found = theirs(batch.ids, attention_mask=mask.long()).logits
        torch.testing.assert_close(found, ours, atol=2e-5 * float(ours.abs().max()), rtol=0)

    def test_bfloat16_keeps_its_weights(self, tmp_path):
        model = sequence_classifier().bfloat16()
        export(model, tmp_path / "out", form="transformers")
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", dtype="auto")
        assert theirs.dtype is torch.bfloat16
        scale = theirs.bert.pooler.dense.weight[0, 0]
        assert torch.equal(theirs.classifier.weight * scale, model.head.weight)
        assert torch.equal(theirs.bert.pooler.dense.weight, torch.eye(20, dtype=torch.bfloat16) * scale)

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            (lambda: sequence_classifier(pooling="mean"), "none the mean of all tokens"),
            (lambda: sequence_classifier("modernbert"), "normalises the vector"),
            (lambda: classifier(), "no class with the encoder TransformerEncoder"),
            (lambda: sequence_classifier().half(), "float16"),
        ],
    )
    def test_classifiers_without_a_class_are_refused(self, tmp_path, model, words):
        with pytest.raises(RefusedError, match=rf"{words}[\s\S]*onnx"):
            export(model(), tmp_path / "out", form="transformers")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
    def test_encoders(self, tmp_path, kind):
        model = masked_language_model(kind, head=False)
        export(model, tmp_path / "out", form="transformers")
        theirs = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        read = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
        batch = model.tokenizer.encode(TEXTS, truncate=True)
        assert torch.equal(read["input_ids"], batch.ids)
        with torch.no_grad():
            found, ours = theirs(**read).last_hidden_state, model(batch.ids, mask=batch.mask).hidden
        tokens = read["attention_mask"].bool()
        torch.testing.assert_close(found[tokens], ours[tokens], **AGREES)

    def test_other_models_in_the_layout_of_transformers(self, tmp_path):
        export(language_model("gpt2"), tmp_path / "gpt2", form="transformers")
        export(load(save_t5(tmp_path / "peer")), tmp_path / "t5", form="transformers")
        export(small_clip(channels=3), tmp_path / "clip", form="transformers")
        assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2")).__name__ == "GPT2LMHeadModel"
        assert type(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "t5")).__name__.startswith("T5")
        assert isinstance(load(tmp_path / "clip"), Clip)

    @pytest.mark.parametrize(("norm", "kind"), [("pre", "pegasus"), ("post", "marian")])
    def test_translators_by_their_norms(self, tmp_path, norm, kind):
        model = transformer(norm=norm, heads=4, width=24).model
        export(model, tmp_path / "out", form="transformers")
        assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == kind


def _deit():
    config = DeitConfig((12, 8), (4, 4), layers=2, width=20, heads=5, inner=13, labels=LABELS, distillation_head=True)
    return _fill(Deit(config), (12, 8), 3)


def _swin():
    config = SwinConfig((12, 20), patch_size=(2, 2), width=12, depths=(2, 2), heads=(1, 2), window=3, labels=LABELS)
    return _fill(Swin(config), (12, 20), 3)


class TestPictures:
    @pytest.mark.parametrize(
        "make", [lambda: image_classifier(LABELS, channels=3), _deit, _swin], ids=["vit", "deit", "swin"]
    )
    def test_classifiers(self, tmp_path, make):
        model = make()
        export(model, tmp_path / "out", form="transformers")
        theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
        assert tuple(theirs.config.id2label.values()) == LABELS
        processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out", use_fast=False)
        picture = Image.fromarray(random_pixels(23, 31))
        pixels = processor(picture, return_tensors="pt")["pixel_values"]
        ours = model.processor([picture])
        torch.testing.assert_close(pixels, ours, atol=1e-6, rtol=0)
        with torch.no_grad():
            torch.testing.assert_close(theirs(pixels).logits, model(ours).logits, **AGREES)

    @pytest.mark.parametrize(
        "make",
        [
            small_cct,
            lambda: image_classifier(LABELS, mechanism="linear"),
            lambda: Perceiver.classifier(PixelInput((5, 7), channels=3, bands=3), LABELS, latents=5, width=12, layers=2,
                                         repeats=2, heads=3),
        ],
        ids=["cct", "linear", "perceiver"],
    )  # fmt: skip
    def test_models_without_a_class_are_refused(self, tmp_path, make):
        with pytest.raises(RefusedError, match="transformers has no class"):
            export(make(), tmp_path / "out", form="transformers")
        assert list(tmp_path.iterdir()) == []

    def test_a_cvt(self, tmp_path):
        model = small_cvt(LABELS)
        export(model, tmp_path / "out", form="transformers")
        theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
        pixels = torch.randn(2, 1, 26, 19)
        with torch.no_grad():
            torch.testing.assert_close(theirs(pixels).logits, model(pixels).logits, **AGREES)


def test_bad_calls(tmp_path):
    model = sequence_classifier()
    with pytest.raises(OptionError, match="transformers"):
        export(model, tmp_path / "out", form="tensorflow")
    with pytest.raises(OptionError, match="model"):
        export("model", tmp_path / "out", form="onnx")
    with pytest.raises(OutputExistsError):
        export(model, tmp_path, form="transformers")
    for form in ("ctranslate2", "marian", "pegasus"):
        with pytest.raises(RefusedError, match="a translator"):
            export(model, tmp_path / "out", form=form)
    assert set(FORMS) == {"transformers", "onnx", "ctranslate2", "marian", "pegasus"}

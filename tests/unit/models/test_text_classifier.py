"""The text classifier and its encoders: equations, padding, saving and loading, and what is refused."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from torch.nn import functional

import regard
from regard import masks
from regard.errors import CheckpointError, OptionError, OutputExistsError, RefusedError, ShapeError
from regard.models import (
    Bert,
    BertConfig,
    TextClassifier,
    TextClassifierConfig,
    TransformerEncoder,
    TransformerEncoderConfig,
)
from small_checkpoints import change_config
from small_classifiers import TEXTS, classifier

IDS = torch.tensor([[2, 5, 6, 7, 8, 0, 0], [2, 9, 8, 7, 6, 5, 4]])
LENGTHS = [5, 7]


def bert() -> Bert:
    torch.manual_seed(3)
    return Bert(BertConfig(vocabulary=37, width=20, layers=2, heads=5, inner=13, max_length=31)).eval()


def encoder(**options) -> TransformerEncoder:
    torch.manual_seed(3)
    numbers = {"width": 20, "layers": 2, "heads": 5, "inner": 13}
    return TransformerEncoder(TransformerEncoderConfig(37, **{**numbers, **options})).eval()


class TestTransformerEncoder:
    @pytest.mark.parametrize("norm", ["pre", "post"])
    def test_agrees_with_its_equation(self, norm):
        model = encoder(norm=norm)
        tokens = model.token_embedding(IDS) * 20**0.5 + regard.positions.Sinusoidal(20)(7)
        for layer in model.layers:
            tokens = layer(tokens, mask=masks.padding(LENGTHS))
        expected = functional.layer_norm(tokens, (20,)) if norm == "pre" else tokens
        torch.testing.assert_close(model(IDS, mask=masks.padding(LENGTHS)).hidden, expected)

    @pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "none"])
    @pytest.mark.parametrize("mechanism", ["dot_product", "additive"])
    def test_padding_has_no_influence(self, position, mechanism):
        model = encoder(position=position, mechanism=mechanism)
        other = IDS.clone()
        other[0, 5:] = 11
        first, second = (model(ids, mask=masks.padding(LENGTHS)).hidden for ids in (IDS, other))
        assert torch.equal(first[0, :5], second[0, :5])
        alone = model(IDS[:1, :5]).hidden
        torch.testing.assert_close(first[:1, :5], alone)

    @pytest.mark.parametrize("mechanism", ["linear", "linformer"])
    def test_mechanisms_without_scores(self, mechanism):
        model = encoder(mechanism=mechanism)
        hidden = model(IDS, mask=masks.padding(LENGTHS)).hidden
        torch.testing.assert_close(hidden[:1, :5], model(IDS[:1, :5]).hidden, atol=1e-5, rtol=1e-5)

    def test_keep_layers_returns_all_hidden_states(self):
        output = encoder()(IDS, keep_layers=True)
        assert [tuple(layer.shape) for layer in output.layers] == [(2, 7, 20)] * 3
        assert torch.equal(output.layers[-1], output.hidden)
        assert encoder()(IDS).layers is None

    @pytest.mark.parametrize("position", ["learned", "rotary", "shaw"])
    def test_saved_and_loaded(self, tmp_path, position):
        model = encoder(position=position, mechanism_options={}, max_length=64)
        model.save(tmp_path / "m")
        again = regard.load(tmp_path / "m")
        assert again.config == model.config
        assert torch.equal(again(IDS).hidden, model(IDS).hidden)
        with pytest.raises(OutputExistsError):
            model.save(tmp_path / "m")

    def test_learned_positions_limit_the_length(self):
        assert encoder(position="learned", max_length=6).max_tokens == 6
        assert encoder().max_tokens is None
        with pytest.raises(ShapeError, match="positions"):
            encoder(position="learned", max_length=6)(IDS)

    @pytest.mark.parametrize(
        "options",
        [{"position": "circular"}, {"layers": 0}, {"dropout": 1.5}, {"pad_id": 37}, {"norm": "none"}, {"heads": 3}],
    )
    def test_invalid_hyperparameters_are_refused(self, options):
        with pytest.raises(OptionError):
            encoder(**options)


@pytest.mark.parametrize("make", [bert, encoder])
def test_mean_pooling_excludes_padding(make):
    model = TextClassifier(make(), TextClassifierConfig(("a", "b", "c"))).eval()
    output = model(IDS, mask=masks.padding(LENGTHS))
    means = torch.stack([output.hidden[row, :length].mean(0) for row, length in enumerate(LENGTHS)])
    torch.testing.assert_close(output.logits, functional.linear(means, model.head.weight, model.head.bias))
    torch.testing.assert_close(model(IDS[:1, :5]).logits, output.logits[:1])


def test_cls_pooling_takes_the_first_token():
    model = TextClassifier(encoder(), TextClassifierConfig(("a", "b"), pooling="cls")).eval()
    output = model(IDS, mask=masks.padding_of(IDS, 0))
    torch.testing.assert_close(output.logits, model.head(output.hidden[:, 0]))


def test_probabilities():
    logits = torch.tensor([[1.0, 2.0, -1.0]])
    one = TextClassifier(encoder(), TextClassifierConfig(("a", "b", "c")))
    several = TextClassifier(encoder(), TextClassifierConfig(("a", "b", "c"), several=True))
    torch.testing.assert_close(one.probabilities(logits), logits.double().exp() / logits.double().exp().sum())
    torch.testing.assert_close(several.probabilities(logits), 1 / (1 + (-logits.double()).exp()))


def test_mean_pooling_needs_a_padding_mask():
    model = TextClassifier(encoder(), TextClassifierConfig(("a", "b"))).eval()
    for mask in (masks.padding_of(IDS, 0), masks.padding(LENGTHS, side="left")):
        with pytest.raises(RefusedError, match="which tokens are padding"):
            model(IDS, mask=mask)


def test_pooler_of_bert_is_removed():
    inner = bert()
    hidden = inner(IDS).hidden
    model = TextClassifier(inner, TextClassifierConfig(("a", "b"))).eval()
    assert not any("pooler" in name for name in model.state_dict())
    torch.testing.assert_close(model(IDS).hidden, hidden)


@pytest.mark.parametrize("make", [bert, encoder])
@pytest.mark.parametrize("several", [False, True])
def test_saved_and_loaded(tmp_path, make, several):
    config = TextClassifierConfig(("no|thing", "être", "3"), several, "cls", dropout=0.25, max_tokens=29)
    model = TextClassifier(make(), config).eval()
    model.metadata = {"texts": 3}
    model.save(tmp_path / "m")
    again = regard.load(tmp_path / "m")
    assert isinstance(again, TextClassifier)
    assert again.config == config
    assert type(again.encoder) is type(model.encoder)
    assert again.encoder.config == model.encoder.config
    assert dict(again.metadata) == {"texts": 3}
    assert not again.training
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "about.json",
        "config.json",
        "model.safetensors",
    ]
    with safe_open(tmp_path / "m" / "model.safetensors", framework="pt") as file:
        assert {name.partition(".")[0] for name in file.keys()} == {"encoder", "head"}  # noqa: SIM118


def test_tokenizer_is_saved_with_its_training_limit(tmp_path):
    model = classifier(limit=9)
    model.save(tmp_path / "m")
    again = regard.load(tmp_path / "m")
    assert (again.max_tokens, again.tokenizer.limit, again.encoder.tokenizer.limit) == (9, 9, None)
    batch, other = again.tokenizer.encode(TEXTS[:2]), model.tokenizer.encode(TEXTS[:2])
    assert torch.equal(batch.ids, other.ids)
    assert classifier(limit=9, position="learned", max_length=7).max_tokens == 7


@pytest.mark.parametrize(
    "change",
    [
        {"labels": None},
        {"labels": ["one"]},
        {"labels": ["a", "a", "b"]},
        {"labels": ["a", "b"]},
        {"several": "perhaps"},
        {"pooling": "max"},
        {"dropout": 2},
        {"max_tokens": 0},
        {"encoder": None},
        {"encoder": {"model_type": "gpt"}},
        {"encoder": {"model_type": "bert"}},
    ],
)
def test_damaged_config_is_refused(tmp_path, change, without_shape_checks):
    classifier().save(tmp_path / "m")
    change_config(tmp_path / "m", **change)
    with pytest.raises(CheckpointError):
        regard.load(tmp_path / "m")


@pytest.mark.parametrize(
    "options",
    [
        {"labels": ("one",)},
        {"labels": ("a", "a")},
        {"labels": ("a", " ")},
        {"labels": ["a", "b"]},
        {"labels": ("a", "b"), "pooling": "max"},
        {"labels": ("a", "b"), "several": "yes"},
        {"labels": ("a", "b"), "max_tokens": 0},
    ],
)
def test_invalid_configs_are_refused(options, without_shape_checks):
    with pytest.raises(OptionError):
        TextClassifierConfig(**options)


def test_classifier_as_an_encoder_is_refused():
    with pytest.raises(OptionError, match=r"classifier\.encoder"):
        TextClassifier(classifier(), TextClassifierConfig(("a", "b")))


def test_training_gives_every_weight_a_gradient():
    model = TextClassifier(encoder(), TextClassifierConfig(("a", "b"), dropout=0.0)).train()
    model(IDS, mask=masks.padding(LENGTHS)).logits.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())

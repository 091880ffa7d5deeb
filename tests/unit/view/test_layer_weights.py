"""Layers stored as weights alone: mechanisms without scores, signed weights, and their statistics in the views."""

import ast
import math
import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import regard
import regard.mechanisms
import regard.view
import regard.view.from_recording
from regard.errors import DataError, RegardError
from regard.mechanisms import Mechanism, Traits
from regard.view import print_readings, read_pair
from regard.view.attention_layer import choose_encoding
from regard.view.findings import findings, strongest_finding_per_word
from regard.view.from_recording import layers_of
from regard.view.head_statistics import statistics_of
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.reading import PairReading, Reading, Tokens
from regard.view.shares import shares_of
from regard.view.word_pairs import word_pairs
from small_translators import HEADS as HEADS_OF_TRANSLATOR
from small_translators import SOURCE, TARGET, transformer

HEADS, QUERIES, KEYS, HEAD_DIM = 3, 5, 7, 11


class CentredMean(Mechanism):
    """A toy without scores: each query gives weight 1 to the key at its position, and -1 / keys to all."""

    traits = Traits(weights_are="signed")

    def attend(self, request):
        own = request.value[:, :, request.frame.offset :] if request.frame.offset else request.value
        return own - request.value.mean(dim=2, keepdim=True)


def record_layer(mechanism: Mechanism, queries: int = QUERIES, keys: int = KEYS):
    """Return the recorded layer, and its random query and key (heads, length, head_dim) in float64."""
    torch.manual_seed(3)
    query, key = torch.randn(1, HEADS, queries, HEAD_DIM), torch.randn(1, HEADS, keys, HEAD_DIM)
    with regard.record(mechanism) as recording:
        mechanism(query, key, torch.randn(1, HEADS, keys, HEAD_DIM))
    (layer,) = layers_of(recording)
    return layer, query[0].double().numpy(), key[0].double().numpy()


def one_head(*rows: list[float], weights_are: str = "signed") -> LayerWeights:
    """One head."""
    return LayerWeights("one", torch.tensor([rows]), weights_are, "no scores")


def tokens(words: str) -> Tokens:
    pieces = tuple(words.split())
    ends = np.cumsum([len(piece) + 1 for piece in pieces])
    spans = tuple((int(end) - len(piece) - 1, int(end) - 1) for end, piece in zip(ends, pieces, strict=True))
    return Tokens(words, pieces, spans, (False,) * len(pieces))


def test_linear_attention_is_stored_as_weights() -> None:
    layer, query, key = record_layer(regard.mechanism("linear", heads=HEADS, head_dim=HEAD_DIM))
    feature = lambda x: np.where(x > 0, x + 1, np.exp(x))  # noqa: E731 - elu(x) + 1, Katharopoulos et al. 2020
    products = feature(query) @ feature(key).swapaxes(1, 2)
    assert isinstance(layer, LayerWeights)
    assert (layer.weights_are, layer.is_signed) == ("distribution", False)
    assert layer.reason == "This mechanism forms no scores."
    np.testing.assert_allclose(layer.weights(), products / products.sum(-1, keepdims=True), atol=2e-6)


def test_linformer_is_stored_as_signed_weights() -> None:
    mechanism = regard.mechanism("linformer", heads=HEADS, head_dim=HEAD_DIM, length=13, projected=2)
    layer, query, key = record_layer(mechanism)
    of_key, of_value = (
        one.detach().double().numpy()[:, :KEYS] for one in (mechanism.key_projection, mechanism.value_projection)
    )
    scores = query @ (of_key @ key).swapaxes(1, 2) / math.sqrt(HEAD_DIM)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True) @ of_value  # Wang et al. 2020, equation 7
    assert layer.is_signed
    assert (expected < 0).any()
    np.testing.assert_allclose(layer.weights(), expected, atol=3e-6)


def test_custom_mechanism_is_stored_as_weights() -> None:
    layer, _, _ = record_layer(CentredMean(heads=HEADS, head_dim=HEAD_DIM))
    own = np.eye(QUERIES, KEYS, k=KEYS - QUERIES)
    np.testing.assert_allclose(layer.weights(), np.broadcast_to(own - 1 / KEYS, (HEADS, QUERIES, KEYS)), atol=1e-6)


def test_too_many_weights_are_refused_before_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.view.from_recording, "MAX_WEIGHTS", HEADS * QUERIES * KEYS - 1)
    monkeypatch.setattr(CentredMean, "weights", lambda *_, **__: pytest.fail("computed"))
    # 104 weights of 3 heads: a square of up to 5 tokens.
    with pytest.raises(DataError, match=r"too many weights(.|\n)*at most 104(.|\n)*5 x 7(.|\n)*fewer tokens: up to 5 "):
        record_layer(CentredMean(heads=HEADS, head_dim=HEAD_DIM))


def test_limit_does_not_apply_to_layers_with_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.view.from_recording, "MAX_WEIGHTS", 0)
    layer, _, _ = record_layer(regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM))
    assert isinstance(layer, LayerReading)


def test_nonfinite_weights_are_refused() -> None:
    with pytest.raises(DataError, match="not finite"):
        one_head([0.0, np.nan])


@pytest.mark.parametrize("wrong", [None, 3, "layers", [None]])
def test_values_that_are_no_recording_are_refused(wrong: object) -> None:
    with pytest.raises(RegardError, match="record"):
        layers_of(wrong)


def test_shares_of_signed_weights_are_those_of_absolute_weights() -> None:
    np.testing.assert_allclose(shares_of(one_head([0.5, -1.0, 0.5], [0, 0, 0]), 0), [[0.25, 0.5, 0.25], [0, 0, 0]])
    unsigned = one_head([0.5, 0.25], weights_are="non-negative")
    np.testing.assert_array_equal(shares_of(unsigned, 0), unsigned.weights()[0])


def test_statistics_of_signed_weights() -> None:
    reading = Reading(tokens("a b"), (one_head([3.0, -1.0], [0.0, -2.0]),))
    (statistics,) = statistics_of(reading)
    shares = np.array([[0.75, 0.25], [0, 1]])
    assert statistics.entropy == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) / 2)
    assert statistics.itself == pytest.approx(np.trace(shares) / 2)
    assert (statistics.next, statistics.previous, statistics.distance) == pytest.approx((0.125, 0, 0.125))


def test_large_negative_weight_is_a_finding() -> None:
    text = tokens("dogs bark and cats sleep")
    rows = np.full((5, 5), 0.1)
    rows[0, 3] = -1.6  # dogs -> cats: 0.8 of 2.0
    pairs = word_pairs(Reading(text, (one_head(*rows.tolist()),)))
    first, *_ = findings(pairs)
    assert (pairs.query_words[first.query_word].text, pairs.key_words[first.key_word].text) == ("dogs", "cats")
    assert first.looks[0].weight == pytest.approx(0.8)
    assert strongest_finding_per_word(pairs)[0].looks[0].weight == pytest.approx(0.8)


def test_rows_of_weights_are_encoded_as_vectors() -> None:
    matrices = torch.from_numpy(np.random.default_rng(5).normal(size=(2, 3, 5)).astype(np.float32))
    layer = LayerWeights("one", matrices, "signed", "why")
    assert choose_encoding([layer], room=layer.size * 16 // 3) == (0, 0.0)
    letters, error = choose_encoding([layer], room=1)
    assert letters == 2
    # Half a step of 91^2 - 1, in a row whose scale is at most 1.1 % above its largest weight.
    assert 0 < error <= 1.011 * layer.matrices.abs().max().item() / (91**2 - 1)
    data = layer.pack([], letters)
    assert [len(head) for head in data["weights"]] == [3 * (1 + 5) * letters] * 2
    assert data["largest"] == pytest.approx(layer.matrices.abs().max().item())
    assert (data["weights_are"], data["reason"]) == ("signed", "why")


@pytest.mark.parametrize(
    ("mechanism", "options", "signed"), [("linear", {}, False), ("linformer", {"length": 29, "projected": 3}, True)]
)
def test_translator_with_an_encoder_without_scores(mechanism: str, options: dict, signed: bool) -> None:
    translator = transformer(mechanism=mechanism, mechanism_options=options, decoder_mechanism="dot_product")
    pair = read_pair(translator, SOURCE, TARGET)
    assert {type(layer) for layer in pair.source.layers} == {LayerWeights}
    assert {type(layer) for layer in pair.target.layers + pair.alignment.layers} == {LayerReading}
    assert pair.source.layers[0].weights().shape == (HEADS_OF_TRANSLATOR, *[len(pair.source.tokens)] * 2)
    console = Console(file=StringIO(), width=120)
    print_readings([pair], console)
    shown = console.file.getvalue()
    assert "Source self-attention" in shown
    assert ("Weights may be below 0 here" in shown.replace("\n", " ")) == signed


def test_alignment_by_signed_weights_uses_absolute_weights() -> None:
    written, source = tokens("dogs sleep"), tokens("hunde schlafen fest")
    layer = one_head([0.5, -1.25, 0.75], [0.25, -0.25, 1.5])
    pair = PairReading(Reading(written, (layer,), keys=source), 0, None, None, forced=True)
    console = Console(file=StringIO(), width=150)
    print_readings([pair], console)
    shown = console.file.getvalue()
    assert re.search(r"dogs +schlafen +50\.0 %.*fest 30\.0 %, hunde 20\.0 %", shown)
    assert re.search(r"sleep +fest +75\.0 %", shown)
    assert "Weights may be below 0 here" in shown


def test_views_name_no_mechanism() -> None:
    folder = Path(regard.view.__file__).parent
    classes = {
        name
        for name in regard.mechanisms.__all__
        if name not in ("Mechanism", "ScoredMechanism", "State", "ExtraInput")
    }
    for file in [*folder.glob("*.py"), *(folder / "assets").iterdir()]:
        text = file.read_text("utf-8")
        assert not re.findall(rf"\b({'|'.join(classes)})\b", text), file.name
        if file.suffix == ".py":
            imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
            of_mechanisms = {module for module in imported if module and module.startswith("regard.mechanisms")}
            assert of_mechanisms <= {"regard.mechanisms.base", "regard.mechanisms.steps"}, file.name

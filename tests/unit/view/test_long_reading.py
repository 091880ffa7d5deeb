"""Long texts in few numbers: the same as from whole matrices, in bounded memory, and encoded in few letters."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

import regard.view.shares
from layer_readings import layer_reading
from regard import masks
from regard.contract import Frame
from regard.mechanisms.steps import Steps
from regard.view import LayerReading, LayerWeights, print_readings, statistics_of
from regard.view.attention_layer import AttentionLayer
from regard.view.fit_page import plan_page
from regard.view.long_data import build_long_data
from regard.view.long_reading import summarize_long
from regard.view.pack import ALPHABET, pack_integers, pack_logarithms
from regard.view.page import render_page
from regard.view.page_size import (
    MAX_PAGE_BYTES,
    MAX_PATCHES,
    MAX_SUMMARY_BYTES,
    ROW_KEYS,
    SummaryDetail,
    bytes_of_summary,
    choose_detail,
)
from regard.view.reading import Reading, Tokens

LENGTH = 90


def tokens_of_words(length: int) -> Tokens:
    words = ["[CLS]", *(f"word{number % 17}" for number in range(length - 2)), "."]
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    spans = [(int(start), int(start) + len(word)) for start, word in zip(starts, words, strict=False)]
    return Tokens(" ".join(words), tuple(words), ((0, 0), *spans[1:]), (True, *[False] * (length - 1)))


def steps_of(length: int, mask: masks.Mask | None, seed: int) -> Steps:
    generator = torch.Generator().manual_seed(seed)
    query, key = (2 * torch.randn(1, 2, length, 4, generator=generator) for _ in range(2))
    return Steps(query, key, mask, scale=0.5)


def layer_of(kind: str, seed: int) -> AttentionLayer:
    generator = np.random.default_rng(seed)
    if kind == "weights":
        weights = generator.random((2, LENGTH, LENGTH), dtype=np.float32)
        return LayerWeights("weights", torch.from_numpy(weights / weights.sum(-1, keepdims=True)), "distribution", "")
    if kind == "bias":
        vectors = [generator.normal(size=(2, LENGTH, 4)) for _ in range(3)]
        return layer_reading("bias", *vectors, 0.5, bias=generator.normal(size=(2, 2 * LENGTH - 1)))
    mask = {"causal": masks.causal(), "window": masks.window(9, 3), "encoder": None}[kind]
    steps = steps_of(LENGTH, mask, seed)
    return LayerReading(kind, steps, steps.key[0])


@pytest.mark.parametrize("kind", ["encoder", "causal", "window", "bias", "weights"])
def test_blocks_give_the_numbers_of_whole_matrices(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(tokens_of_words(LENGTH), (layer_of(kind, 0), layer_of(kind, 1)))
    expected = statistics_of(reading)
    monkeypatch.setattr(regard.view.shares, "_MAX_SHARES", 7 * LENGTH)
    summary = summarize_long(reading)
    edges = np.arange(MAX_PATCHES + 1) * LENGTH // MAX_PATCHES
    for head, whole in zip(summary.heads, expected, strict=True):
        for name in ("entropy", "distance", "itself", "previous", "next", "later", "special"):
            assert getattr(head.statistics, name) == pytest.approx(getattr(whole, name), abs=1e-5)
        for pattern, other in zip(head.statistics.patterns, whole.patterns, strict=True):
            assert (pattern.name, pattern.queries) == (other.name, other.queries)
            assert (pattern.score, pattern.chance) == pytest.approx((other.score, other.chance), abs=1e-5)
        weights = reading.layers[whole.layer].weights_of(whole.head)
        largest = np.maximum.reduceat(np.maximum.reduceat(weights, edges[:-1], axis=0), edges[:-1], axis=1)
        np.testing.assert_allclose(head.largest, largest, atol=1e-6)
        assert head.mean.sum() == pytest.approx(MAX_PATCHES, rel=1e-4)
        rows = weights[list(summary.queries)]
        np.testing.assert_allclose(head.shares, -np.sort(-rows, axis=1)[:, :ROW_KEYS], atol=1e-6)
        np.testing.assert_allclose(np.take_along_axis(rows, head.keys, axis=1), head.shares, atol=1e-6)


def test_notable_pairs_need_two_heads_of_other_words_that_are_no_neighbours() -> None:
    vectors = [np.random.default_rng(0).normal(size=(3, LENGTH, 4)) * 0.1 for _ in range(3)]
    vectors[0][:2, 60], vectors[1][:2, 20] = [20, 0, 0, 0], [20, 0, 0, 0]  # word8 to word2, in two heads
    vectors[0][:1, 50], vectors[1][:1, 30] = [0, 20, 0, 0], [0, 20, 0, 0]  # in a single head
    vectors[0][:, 70], vectors[1][:, 71] = [0, 0, 6, 0], [0, 0, 6, 0]  # neighbours
    summary = summarize_long(Reading(tokens_of_words(LENGTH), (layer_reading("layer", *vectors, 1.0),)))
    assert [(pair.query, pair.key) for pair in summary.pairs] == [(60, 20)]
    assert {look.head for look in summary.pairs[0].looks} == {0, 1}
    assert 60 in summary.queries


def test_a_text_of_many_tokens_forms_no_matrix() -> None:
    length = 20_000  # a mask of all pairs would have 400 MB
    mask = masks.causal()
    layer = LayerReading("layer", steps_of(length, mask, 0), torch.zeros(2, length, 4))
    assert layer.is_causal
    weights = layer.weights_of_block(0, range(100, 120))
    assert weights.shape == (20, 120)
    np.testing.assert_allclose(weights, layer.weights_of(0, range(100, 120))[:, :120], atol=1e-6)
    assert layer.allowed_of(range(5, 7)).sum(axis=1).tolist() == [6, 7]
    assert mask.band(Frame(length, length)) is not None
    assert "is summarized" in plan_page([Reading(tokens_of_words(length), (layer,), sink=0)]).sentence


def test_data_of_a_page_is_small_and_decodes() -> None:
    reading = Reading(tokens_of_words(LENGTH), (layer_of("causal", 0),), sink=0)
    summary = summarize_long(reading)
    data = build_long_data([summary], "model", 0)["texts"][0]
    vocabulary = data["tokens"]["vocabulary"]
    numbers = decode(data["tokens"]["numbers"], 3)
    assert "".join(vocabulary[number] for number in numbers) == reading.tokens.text
    assert decode(data["queries"], 3) == [*summary.queries]
    assert len(vocabulary) == 19


def test_a_page_holds_every_weight_unless_it_would_be_too_large() -> None:
    def reading_of(tokens: int, heads: int, head_dim: int = 64) -> Reading:
        vectors = torch.zeros(1, heads, 1, head_dim).expand(-1, -1, tokens, -1)
        return Reading(
            tokens_of_words(tokens), (LayerReading("layer", Steps(vectors, vectors, None, 1.0), vectors[0]),)
        )

    def said(*readings: Reading) -> str:
        return plan_page(readings).sentence

    minilm, gpt2, llama = 72, 144, 1024
    assert said(reading_of(20, minilm, 32)) == ""
    assert plan_page([reading_of(256, minilm, 32)]).size == 2 * 3 * 256 * 72 * 32 + 300 * 72
    assert said(reading_of(512, gpt2)) == "The page has about 28 MB."
    assert "57 MB, more than 32 MB. Each head is summarized" in said(reading_of(1024, gpt2))
    assert "more than 1,024 tokens. Each head is summarized" in said(reading_of(1025, 1))
    assert "It leaves out values" in said(*[reading_of(100, minilm, 32)] * 30)
    assert "It has the weights alone" in said(*[reading_of(16, minilm, 32)] * 200)
    assert "It has the weights alone" in said(reading_of(MAX_PATCHES, 2 * llama))
    assert "Each head is summarized" in said(*[reading_of(300, minilm, 32)] * 30)
    assert sum(bytes_of_summary(reading_of(300, llama), 30) for _ in range(30)) <= MAX_PAGE_BYTES
    assert choose_detail(reading_of(1024, gpt2)) == SummaryDetail()
    assert all(bytes_of_summary(reading_of(300, heads)) <= MAX_SUMMARY_BYTES for heads in (340, llama, 5120))


def test_many_heads_make_a_summary_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(tokens_of_words(LENGTH), tuple(layer_of("causal", seed) for seed in range(8)), sink=0)
    monkeypatch.setattr("regard.view.page_size.MAX_SUMMARY_BYTES", 100_000)
    detail, summary = choose_detail(reading), summarize_long(reading)
    assert summary.heads[0].largest.shape == (detail.patches, detail.patches)
    assert detail.patches < MAX_PATCHES
    size = len(json.dumps(build_long_data([summary], "model", 0)))
    assert 0.8 * bytes_of_summary(reading) < size <= bytes_of_summary(reading) <= 100_000


def decode(packed: str, letters: int) -> list[int]:
    numbers = []
    for start in range(0, len(packed), letters):
        number = 0
        for letter in packed[start : start + letters]:
            number = number * len(ALPHABET) + ALPHABET.index(letter)
        numbers.append(number)
    return numbers


@pytest.mark.parametrize(("letters", "error"), [(1, 0.081), (2, 0.002)])
def test_logarithms_are_off_by_a_stated_share_of_themselves(letters: int, error: float) -> None:
    shares = np.exp2(-np.random.default_rng(0).random(1000) * 20 * letters)
    levels = np.array(decode(pack_logarithms(shares, letters), letters))
    decoded = np.exp2(20 * letters * ((levels - 1) / (len(ALPHABET) ** letters - 2) - 1))
    assert np.abs(decoded / shares - 1).max() < error
    assert decode(pack_logarithms(np.array([0.0, 1.0]), letters), letters) == [0, len(ALPHABET) ** letters - 1]
    assert pack_integers(np.array([91]), 2) == ALPHABET[1] + ALPHABET[0]


def test_one_long_text_makes_all_texts_short_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [
        Reading(tokens_of_words(length), (layer_reading("layer", *[np.ones((1, length, 4))] * 3, 1.0),))
        for length in (12, 30)
    ]
    assert plan_page(readings).make(lambda done: None) is readings
    monkeypatch.setattr("regard.view.page_size.MAX_WHOLE_TOKENS", 20)
    done: list[int] = []
    shortened = plan_page(readings).make(done.append)
    assert [type(reading).__name__ for reading in shortened] == ["LongReading"] * 2
    assert done == [1000, 2000]
    assert "long-text" in render_page(readings)
    console = Console(width=100, record=True, file=io.StringIO())
    print_readings(shortened, console)
    assert "30 tokens, 1 layer, 1 head." in console.export_text()

"""Weights of many heads in few calls: the same numbers, and of a long text no more memory than one head needs."""

from collections.abc import Callable
from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console

from layer_readings import layer_reading, relative_vectors, to_tensor
from regard.layers.window_partition import WindowPartition
from regard.mechanisms.steps import Steps
from regard.view import attention_layer, print_readings
from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.page import render_page
from regard.view.reading import Reading, Tokens
from regard.view.window_reading import WindowReading

HEADS, QUERIES, KEYS, HEAD_DIM = 5, 7, 11, 3
GENERATOR = np.random.default_rng(29)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def layer_of(heads: int, queries: int, keys: int, **parts) -> LayerReading:
    return layer_reading(
        "one",
        normal(heads, queries, HEAD_DIM),
        normal(heads, keys, HEAD_DIM),
        normal(heads, keys, HEAD_DIM),
        scale=0.7,
        **parts,
    )


def windows() -> WindowReading:
    partition = WindowPartition(5, 7, 3, 1)
    slots = partition.slots.numel()
    return WindowReading(
        "one",
        to_tensor(normal(HEADS, 35, HEAD_DIM)),
        to_tensor(normal(HEADS, slots, HEAD_DIM)),
        to_tensor(normal(HEADS, slots, HEAD_DIM)),
        0.7,
        to_tensor(normal(HEADS, 25)),
        partition,
        to_tensor(GENERATOR.random((35, 9)) < 0.7),
    )


LAYERS: dict[str, Callable[[], AttentionLayer]] = {
    "dot product, masked": lambda: layer_of(HEADS, QUERIES, KEYS, allowed=GENERATOR.random((QUERIES, KEYS)) < 0.7),
    "additive": lambda: layer_of(HEADS, QUERIES, KEYS, vector=normal(HEADS, HEAD_DIM)),
    "by distance": lambda: layer_of(
        HEADS,
        QUERIES,
        KEYS,
        bias=normal(HEADS, QUERIES + KEYS - 1),
        relative_vectors=relative_vectors(normal(HEADS, 3, HEAD_DIM)),
    ),
    "vectors of all heads": lambda: layer_of(
        HEADS, QUERIES, KEYS, relative_vectors=relative_vectors(normal(1, 3, HEAD_DIM))
    ),
    "Gaussian": lambda: layer_of(HEADS, QUERIES, KEYS, centre=normal(HEADS, QUERIES), deviation=2.0),
    "weights alone": lambda: LayerWeights("one", torch.from_numpy(normal(HEADS, QUERIES, KEYS)), "signed", "no scores"),
    "windows": windows,
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("group", [1, 2, 3, HEADS])
def test_heads_in_groups_are_those_alone(name: str, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LAYERS[name]()
    monkeypatch.setattr(attention_layer, "_MAX_HELD", group * layer.queries * layer.keys)
    alone = np.stack([layer.weights_of(head) for head in range(HEADS)])
    np.testing.assert_allclose(np.stack(list(layer.by_head())), alone, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(layer.weights(), alone, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(layer.mean_weights(), alone.mean(axis=0), rtol=1e-12, atol=1e-15)
    some = layer.weights_of_heads(range(1, 4), [6, 0])
    np.testing.assert_allclose(some, alone[1:4][:, [6, 0]], rtol=1e-12, atol=1e-15)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of weights of each call that computes some."""
    sizes: list[int] = []
    original = Steps.weights

    def count(steps: Steps, **arguments: torch.Tensor | None) -> torch.Tensor:
        weights = original(steps, **arguments)
        sizes.append(weights.numel())
        return weights

    monkeypatch.setattr(Steps, "weights", count)
    return sizes


def reading_of(layers: int, heads: int, words: int) -> Reading:
    text = " ".join(f"word{number}" for number in range(words))
    ends = np.cumsum([len(word) + 1 for word in text.split()]).tolist()
    spans = tuple((end - 1 - len(word), end - 1) for word, end in zip(text.split(), ends, strict=True))
    tokens = Tokens(text, tuple(text.split()), spans, (False,) * words)
    return Reading(tokens, tuple(layer_of(heads, words, words) for _ in range(layers)))


def test_a_page_of_four_sentences_computes_each_layer_a_few_times(
    computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of words, statistics and the error of rounding read all heads: a call for each head were 1,728 calls."""
    monkeypatch.setattr("regard.view.page.MAX_VECTOR_CHARACTERS", 1)  # numbers are rounded, and the error is measured
    layers, heads, texts = 6, 12, 4
    readings = [reading_of(layers, heads, words) for words in (13, 17, 11, 19)]
    render_page(readings)
    print_readings(readings, Console(file=StringIO(), width=100))
    passes = 1 + 1 + 2 * 2  # of pairs, of statistics, and of rounded and exact weights for each of two encodings
    findings = 6  # each in one head: its strongest tokens, and the weight of the same words in the other texts
    assert len(computed) <= texts * (passes * layers + findings * texts)


def test_heads_of_a_long_text_are_computed_one_at_a_time(computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    words, heads = 37, 5
    monkeypatch.setattr(attention_layer, "_MAX_HELD", words * words - 1)
    reading = reading_of(2, heads, words)
    render_page([reading])
    assert max(computed) == words * words

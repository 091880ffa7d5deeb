"""Weights of a layer from its stored reading, against the definition in loops."""

import numpy as np
import pytest

from layer_readings import layer_reading, relative_vectors
from regard.conformance.oracles.softmax import softmax, visible_keys
from regard.errors import DataError, ShapeError
from regard.view.layer_reading import LayerReading

HEADS, QUERIES, KEYS, HEAD_DIM = 2, 3, 5, 7
GENERATOR = np.random.default_rng(17)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def random_layer(queries: int = QUERIES, keys: int = KEYS, **parts) -> LayerReading:
    shapes = ((HEADS, queries, HEAD_DIM), (HEADS, keys, HEAD_DIM), (HEADS, keys, 11))
    return layer_reading("one", *(normal(*shape) for shape in shapes), scale=0.7, **parts)


def expected(one: LayerReading, score) -> np.ndarray:
    """softmax of score(head, query, key) in float64, pair by pair."""
    scores = np.array(
        [
            [[score(head, i, j) for j in range(one.key.shape[1])] for i in range(one.query.shape[1])]
            for head in range(HEADS)
        ]
    )[None]
    return softmax(scores, visible_keys(one.allowed, scores.shape))[0]


def dot(one: LayerReading, head: int, i: int, j: int) -> float:
    return 0.7 * float(one.query[head, i].astype(np.float64) @ one.key[head, j].astype(np.float64))


@pytest.mark.parametrize("sizes", [(3, 5), (5, 3), (4, 4)])
def test_dot_product_of_any_lengths(sizes: tuple[int, int]) -> None:
    one = random_layer(*sizes)
    np.testing.assert_allclose(one.weights(), expected(one, lambda *at: dot(one, *at)), rtol=1e-12)


def test_hidden_layer_score() -> None:
    one = random_layer(vector=normal(HEADS, HEAD_DIM))

    def score(head: int, i: int, j: int) -> float:
        hidden = np.tanh(one.query[head, i].astype(np.float64) + one.key[head, j])
        return 0.7 * float(one.steps.vector[head].double().numpy() @ hidden)

    np.testing.assert_allclose(one.weights(), expected(one, score), rtol=1e-12)


def test_some_queries_of_a_head() -> None:
    """The rows of a layer with all steps, in any order."""
    one = random_layer(
        7,
        5,
        bias=normal(HEADS, 11),
        relative_vectors=relative_vectors(normal(HEADS, 3, HEAD_DIM)),
        centre=normal(HEADS, 7),
        deviation=2.0,
        allowed=GENERATOR.random((7, 5)) < 0.7,
    )
    for head in range(HEADS):
        np.testing.assert_allclose(one.weights_of(head, [5, 0, 6]), one.weights()[head][[5, 0, 6]], rtol=1e-12)
        assert one.weights_of(head, []).shape == (0, 5)


@pytest.mark.parametrize("sizes", [(3, 5), (5, 3), (4, 4)])
def test_distance_bias(sizes: tuple[int, int]) -> None:
    queries, keys = sizes
    one = random_layer(*sizes, bias=normal(HEADS, queries + keys - 1))

    def score(head: int, i: int, j: int) -> float:
        distance = j - (i + keys - queries)  # the last query is aligned with the last key
        return dot(one, head, i, j) + float(one.bias[head, distance - (1 - keys)])

    np.testing.assert_allclose(one.weights(), expected(one, score), rtol=1e-12)


def test_a_gaussian_window_is_applied_after_the_softmax() -> None:
    centre = np.abs(normal(HEADS, QUERIES))
    allowed = np.array([[True, True, False, True, True]] * QUERIES)
    one = random_layer(centre=centre, deviation=1.5, allowed=allowed)
    plain = expected(one, lambda *at: dot(one, *at))
    heights = [[[np.exp(-((j - c) ** 2) / 4.5) for j in range(KEYS)] for c in row] for row in centre.astype(np.float64)]
    np.testing.assert_allclose(one.weights(), plain * np.array(heights), rtol=1e-12)
    assert (one.weights().sum(-1) < 1).all()


@pytest.mark.parametrize(
    "parts",
    [
        {"relative_vectors": relative_vectors(normal(HEADS, 3, HEAD_DIM + 1))},
        {"bias": normal(HEADS, QUERIES + KEYS)},
        {"centre": normal(HEADS, KEYS)},
    ],
)
def test_mismatched_shapes_are_refused(parts: dict) -> None:
    with pytest.raises(ShapeError, match="do not fit together"):
        random_layer(**parts)


def test_a_mask_of_other_lengths_is_refused() -> None:
    with pytest.raises(ShapeError):
        random_layer(allowed=np.ones((KEYS, QUERIES), dtype=bool))


@pytest.mark.parametrize("part", ["vector", "bias", "centre"])
def test_nonfinite_numbers_are_refused(part: str) -> None:
    shapes = {"vector": (HEADS, HEAD_DIM), "bias": (HEADS, QUERIES + KEYS - 1), "centre": (HEADS, QUERIES)}
    wild = np.full(shapes[part], np.nan, dtype=np.float32)
    with pytest.raises(DataError, match="not finite"):
        random_layer(**{part: wild})

"""Sums along diagonals and usual weights, against their definitions in loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.view import usual_weights
from regard.view.usual_weights import UsualWeights, by_distance, row_blocks, sum_diagonals
from regard.view.words_from_tokens import Word


@pytest.mark.parametrize("block", [1, 2**20])
@given(queries=st.integers(1, 7), keys=st.integers(1, 7), seed=st.integers(0, 2**16))
def test_sums_along_diagonals(block: int, queries: int, keys: int, seed: int) -> None:
    weights = np.random.default_rng(seed).random((queries, keys))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usual_weights, "_BLOCK", block)
        sums = sum_diagonals(weights)
    expected = [np.trace(weights, offset=distance) for distance in range(1 - queries, keys)]
    np.testing.assert_allclose(sums, expected, rtol=1e-12)
    spread = by_distance(sums, queries)
    assert spread.shape == weights.shape
    for i in range(queries):
        for j in range(keys):
            assert spread[i, j] == sums[j - i + queries - 1]


def test_blocks_have_every_row_once() -> None:
    rows = [row for block in row_blocks(11, 2**19) for row in range(block.start, block.stop)]
    assert rows == list(range(11))
    assert [block.stop - block.start for block in row_blocks(3, 2**21)] == [1, 1, 1]
    assert max(block.stop - block.start for block in row_blocks(20_000, 5)) <= 1024
    assert list(row_blocks(0, 5)) == []


def usual_of_pair(
    weights: np.ndarray, i: int, j: int, queries: list[Word], keys: list[Word], sink: int | None
) -> float:
    """The definition: the mean over the tokens of all other words, at the same distance."""
    own = next(word for word in queries if i in word.pieces)
    seen = {piece for word in keys for piece in word.pieces} - {sink}
    others = [
        weights[piece, piece + j - i]
        for word in queries
        if word is not own
        for piece in word.pieces
        if piece + j - i in seen
    ]
    return float(np.mean(others)) if others else 1 / weights.shape[1]


@st.composite
def words_of_tokens(draw: st.DrawFn) -> tuple[int, list[Word]]:
    """Words of one to three adjacent tokens, with special tokens between them."""
    place, words = draw(st.integers(0, 1)), []
    for _ in range(draw(st.integers(1, 4))):
        pieces = draw(st.sampled_from([1, 2, 3, 11]))
        words.append(Word("w", tuple(range(place, place + pieces)), is_word=True))
        place += pieces + draw(st.integers(0, 1))
    return place, words


@given(asks=words_of_tokens(), gets=words_of_tokens(), alone=st.booleans(), seed=st.integers(0, 99), kept=st.booleans())
def test_usual_weights(asks, gets, alone: bool, seed: int, kept: bool) -> None:
    (queries, query_words), (keys, key_words) = asks, asks if alone else gets
    weights = np.random.default_rng(seed).random((queries, keys))
    sink = 0 if kept else None
    usual = UsualWeights(queries, keys, query_words, key_words, sink).of(weights)
    for word in query_words:
        for i in word.pieces:
            expected = [usual_of_pair(weights, i, j, query_words, key_words, sink) for j in range(keys)]
            np.testing.assert_allclose(usual[i], expected, rtol=1e-6, atol=1e-12)

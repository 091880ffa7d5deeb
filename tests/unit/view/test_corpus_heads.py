"""Statistics over a corpus: those of one text are its own; of several, means over all queries, computed another way."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.errors import DataError
from regard.view import CorpusHead, LayerWeights, Reading, Tokens, corpus_statistics, statistics_of, without_marks

WORDS = ["a", "dog", "saw", "a", "cat", ",", "a", "dog", "ran"]
PREVIOUS = "previous token"


def reading_of(words: list[str], *, layers: int = 2, heads: int = 3, follows_previous: bool = False) -> Reading:
    """[CLS], the words, [SEP], with random weights; head 0 of layer 0 may attend to the previous token alone."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()[: len(words)]
    spans = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
    special = (True, *[False] * len(words), True)
    tokens = Tokens(" ".join(words), ("[CLS]", *words, "[SEP]"), ((0, 0), *spans, (0, 0)), special)
    size = len(tokens)
    scores = torch.randn(layers, heads, size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    weights = scores.softmax(-1)
    if follows_previous:
        weights[0, 0] = torch.eye(size, dtype=torch.float64).roll(-1, dims=1)
    return Reading(tokens, tuple(LayerWeights(f"layers.{n}", weights[n], "distribution", "") for n in range(layers)))


def weights_of(reading: Reading, head: CorpusHead) -> np.ndarray:
    return np.asarray(reading.layers[head.layer].weights()[head.head], dtype=np.float64)


def test_of_one_text_are_its_own() -> None:
    reading = reading_of(WORDS)
    corpus = corpus_statistics([reading], marks=True)
    assert (corpus.texts, corpus.tokens) == (1, 11)
    for pooled, own in zip(corpus.heads, statistics_of(reading), strict=True):
        assert (pooled.layer, pooled.head) == (own.layer, own.head)
        for name in ("entropy", "distance", "itself", "previous", "next", "later"):
            assert getattr(pooled.statistics, name) == pytest.approx(getattr(own, name))
        assert pooled.statistics.special == pytest.approx(own.special)
        assert [pattern.name for pattern in pooled.statistics.patterns] == [pattern.name for pattern in own.patterns]
        assert [pattern.score for pattern in pooled.statistics.patterns] == pytest.approx(
            [p.score for p in own.patterns]
        )


def test_are_means_over_all_queries() -> None:
    """Of texts of several lengths: every query counts alike, whatever its text."""
    read = [reading_of(WORDS[:length]) for length in (3, 5, 9)]
    corpus = corpus_statistics(iter(read), marks=True)
    assert (corpus.texts, corpus.tokens) == (3, 5 + 7 + 11)
    assert len(corpus.heads) == 6
    for pooled in corpus.heads:
        rows = [(row, query) for reading in read for query, row in enumerate(weights_of(reading, pooled))]
        assert pooled.statistics.entropy == pytest.approx(
            np.mean([-(row * np.log(row)).sum() for row, _ in rows]), rel=1e-5
        )
        assert pooled.statistics.previous == pytest.approx(
            sum(row[query - 1] for row, query in rows if query) / 23, rel=1e-5
        )
        assert pooled.statistics.special["[CLS]"] == pytest.approx(np.mean([row[0] for row, _ in rows]), rel=1e-5)
        # The queries of each text but its special tokens, each of which has a token before it.
        scores = [row[query - 1] for row, query in rows if 0 < query < len(row) - 1]
        previous = next(pattern for pattern in pooled.statistics.patterns if pattern.name == PREVIOUS)
        assert (previous.score, previous.queries) == (pytest.approx(np.mean(scores), rel=1e-5), len(scores))


def test_without_marks_they_are_those_of_the_readings_without_them() -> None:
    """A text of special tokens alone says nothing of the others, and is left out."""
    read = [reading_of(WORDS[:length]) for length in (3, 9)]
    corpus = corpus_statistics([*read, reading_of([])])
    assert (corpus.texts, corpus.tokens) == (2, 3 + 9)
    expected = corpus_statistics(map(without_marks, read), marks=True)
    for pooled, other in zip(corpus.heads, expected.heads, strict=True):
        assert other.marks == 0
        assert replace(pooled, marks=0.0) == other
        inner = [weights_of(reading, pooled)[1:-1] for reading in read]
        assert pooled.marks == pytest.approx(
            np.concatenate([rows[:, [0, -1]].sum(1) for rows in inner]).mean(), rel=1e-5
        )


def test_agreement_is_of_the_texts_in_which_the_pattern_names_the_head() -> None:
    """A text of two words is too short to name a head, and counts in neither number."""
    read = [reading_of(WORDS[:length], follows_previous=length < 9) for length in (2, 4, 6, 9)]
    corpus = corpus_statistics(read, marks=True)
    head = corpus.heads[0]
    assert head.pattern is not None
    assert head.pattern.name == PREVIOUS
    assert head.agreement == pytest.approx(2 / 3)
    first, *others = corpus.table()
    assert (first["pattern"], first["agreement"]) == (PREVIOUS, pytest.approx(2 / 3))
    assert all(tuple(row) == tuple(first) for row in others), "all rows have the same columns"


def test_refuses_no_text_and_other_models() -> None:
    with pytest.raises(DataError, match="no text to summarize"):
        corpus_statistics([])
    with pytest.raises(DataError, match="different models"):
        corpus_statistics([reading_of(WORDS), reading_of(WORDS, heads=2)])


def test_a_name_may_come_from_texts_that_are_too_short_alone() -> None:
    """Two words have one or two queries with a token before them; together they are enough."""
    corpus = corpus_statistics([reading_of(WORDS[:2], follows_previous=True)] * 3, marks=True)
    assert corpus.heads[0].pattern is not None
    assert (corpus.heads[0].pattern.name, corpus.heads[0].agreement) == (PREVIOUS, None)

"""Batches: every pair once per epoch, none above the limit, in an order that depends on the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError
from regard.tasks.sentences import Sentences
from regard.tasks.translation.data import Corpus, CorpusBatches
from regard.train.loss import IGNORE_INDEX

LENGTHS = st.lists(st.tuples(st.integers(1, 19), st.integers(1, 23)), min_size=1, max_size=47)


def make_corpus(lengths) -> Corpus:
    """Make pairs of those lengths; the token is 7 + pair number, which identifies the pair in a batch."""
    sides = [[[7 + number] * lengths[number][side] for number in range(len(lengths))] for side in (0, 1)]
    return Corpus(Sentences.from_ids(sides[0], 100), Sentences.from_ids(sides[1], 100))


def draw(batches, epoch):
    return [batch.examples for batch in batches.epoch(epoch)]


def make_batches(lengths, tokens=53, seed=3) -> CorpusBatches:
    return CorpusBatches(make_corpus(lengths), tokens=tokens, seed=seed, pad_id=5, start_id=2, end_id=3)


@given(LENGTHS, st.integers(0, 5))
def test_epoch_has_every_pair_once_within_the_token_limit(lengths, epoch):
    batches = draw(make_batches(lengths), epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        longest = 1 + max(max(lengths[pair]) for pair in batch)
        assert len(batch) == 1 or longest * len(batch) <= 53


@given(LENGTHS)
def test_order_depends_only_on_seed_and_epoch(lengths):
    first, again = make_batches(lengths), make_batches(lengths)
    again.epoch(0)
    for one, other in zip(draw(first, 4), draw(again, 4), strict=True):
        assert one.tolist() == other.tolist()


def test_order_differs_between_epochs_and_seeds():
    lengths = [(5, 5)] * 41
    orders = {str([batch.tolist() for batch in draw(make_batches(lengths, seed=seed), epoch)]) for seed, epoch in
              ((1, 0), (1, 1), (2, 0))}  # fmt: skip
    assert len(orders) == 3


def test_batches_have_little_padding():
    rng = np.random.default_rng(0)
    lengths = [(int(length), int(length)) for length in rng.integers(1, 23, 499)]
    batches = draw(make_batches(lengths, tokens=199), 0)
    padded_tokens = sum(len(batch) * (1 + max(lengths[pair][1] for pair in batch)) for batch in batches)
    assert padded_tokens < 1.1 * sum(1 + target for _, target in lengths)


def test_tensors_of_a_batch():
    batch = make_batches([(2, 1), (1, 3)]).batch(np.array([0, 1]))
    assert batch.source.tolist() == [[7, 7, 3], [8, 3, 5]]
    assert batch.lengths.tolist() == [3, 2]
    assert batch.decoder_input.tolist() == [[2, 7, 5, 5], [2, 8, 8, 8]]
    assert batch.labels.tolist() == [[7, 3, IGNORE_INDEX, IGNORE_INDEX], [8, 8, 8, 3]]
    assert batch.tokens == 6


def test_overlong_pair_has_its_own_batch():
    batches = draw(make_batches([(90, 2), (1, 1), (1, 1)]), 0)
    assert [0] in [batch.tolist() for batch in batches]


def test_large_vocabularies_keep_their_ids():
    ids = [[70_000, 4], [5]]
    assert Sentences.from_ids(ids, 70_001)[0].tolist() == [70_000, 4]
    assert Sentences.from_ids(ids[1:], 2**16).ids.dtype == np.uint16


def test_different_numbers_of_sources_and_targets_are_refused():
    with pytest.raises(DataError, match="not as many"):
        Corpus(Sentences.from_ids([[1]], 5), Sentences.from_ids([[1], [2]], 5))


def test_digest_differs_for_other_data():
    digests = {make_corpus(lengths).digest for lengths in ([(1, 2)], [(2, 1)], [(1, 2), (1, 2)], [(3, 0)])}
    assert len(digests) == 4
    assert make_corpus([(1, 2)]).digest == make_corpus([(1, 2)]).digest


def test_padding_is_not_counted_as_tokens():
    batch = make_batches([(3, 3), (3, 1)]).batch(np.array([0, 1]))
    assert batch.tokens == int((batch.labels != IGNORE_INDEX).sum()) == 4 + 2

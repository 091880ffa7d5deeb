"""Batches of texts: each text once, little padding, and an order that depends on seed and epoch alone."""

from __future__ import annotations

import numpy as np
import pytest

from regard.tasks.classification.data import Batches, LabelledCorpus
from regard.tasks.sentences import Sentences

PAD = 3


def corpus(count=211, seed=1):
    chance = np.random.default_rng(seed)
    texts = [chance.integers(4, 99, size=chance.integers(1, 40)).tolist() for _ in range(count)]
    return LabelledCorpus(Sentences.from_ids(texts, 99), np.eye(3, dtype=bool)[chance.integers(0, 3, size=count)])


def batches(size=7, tokens=None, seed=1, count=211):
    return Batches(corpus(count), size=size, tokens=tokens, seed=seed, pad_id=PAD)


@pytest.mark.parametrize(("size", "tokens"), [(7, None), (7, 50), (1, None), (1000, None), (1000, 1)])
def test_epoch_has_each_text_once(size, tokens):
    made = batches(size, tokens)
    for found in (made.epoch(0), made.epoch(5), made.batches_by_length()):
        assert sorted(np.concatenate(found).tolist()) == list(range(211))
        assert max(map(len, found)) <= size
        lengths = made.corpus.texts.lengths
        assert all(tokens is None or len(one) == 1 or len(one) * lengths[one].max() <= tokens for one in found)


def test_order_depends_only_on_seed_and_epoch():
    def order(seed, epoch):
        return [one.tolist() for one in batches(seed=seed).epoch(epoch)]

    assert order(1, 3) == order(1, 3)
    assert order(1, 3) != order(1, 4)
    assert order(1, 3) != order(2, 3)


def test_batches_differ_between_epochs_and_have_similar_lengths():
    made = batches(count=2111)
    sets = [{frozenset(one.tolist()) for one in made.epoch(number)} for number in range(2)]
    assert len(sets[0] & sets[1]) < 5
    lengths = made.corpus.texts.lengths
    padded = sum(len(one) * lengths[one].max() for one in made.epoch(0))
    assert padded < 1.2 * lengths.sum()


def test_padding_is_on_the_right():
    made = batches()
    which = np.array([5, 0, 17])
    actual = made.batch(which)
    assert actual.ids.shape == (3, max(actual.lengths))
    for row, (index, length) in enumerate(zip(which, actual.lengths.tolist(), strict=True)):
        assert actual.ids[row, :length].tolist() == made.corpus.texts[index].tolist()
        assert (actual.ids[row, length:] == PAD).all()
        assert actual.truth[row].tolist() == made.corpus.truth[index].tolist()


def test_digest_depends_on_texts_and_labels():
    one, other = corpus(), corpus()
    assert one.digest == other.digest
    truth = one.truth.copy()
    truth[3] = ~truth[3]
    assert LabelledCorpus(one.texts, truth).digest != one.digest
    assert corpus(seed=2).digest != one.digest

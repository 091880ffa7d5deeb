"""Batches of texts: each text once, little padding, and an order that depends on seed and epoch alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.media import TEXTS
from regard.tasks.classification.data import LabelledTextBatches
from regard.tasks.sentences import Sentences
from regard.text.labelled import LabelledText

PAD = 3
LABELS = ("a", "b", "c")


def batches(size=7, tokens=None, seed=1, count=211, data_seed=1):
    chance = np.random.default_rng(data_seed)
    ids = [chance.integers(4, 99, size=chance.integers(1, 40)).tolist() for _ in range(count)]
    texts = [LabelledText("", (LABELS[label],), "") for label in chance.integers(0, 3, size=count)]
    made = LabelledTextBatches(texts, Sentences.from_ids(ids, 99), size=size, tokens=tokens, seed=seed, pad_id=PAD)
    made.learn(texts, LABELS, TEXTS)
    return made


def order(made, epoch):
    return [one.examples for one in made.epoch(epoch)]


@pytest.mark.parametrize(("size", "tokens"), [(7, None), (7, 50), (1, None), (1000, None), (1000, 1)])
def test_epoch_has_each_text_once(size, tokens):
    made = batches(size, tokens)
    for found in (order(made, 0), order(made, 5), made.cut_for_validation(size)):
        assert sorted(np.concatenate(found).tolist()) == list(range(211))
        assert max(map(len, found)) <= size
        lengths = made.lengths
        assert all(tokens is None or len(one) == 1 or len(one) * lengths[one].max() <= tokens for one in found)


def test_order_depends_only_on_seed_and_epoch():
    def listed(seed, epoch):
        return [one.tolist() for one in order(batches(seed=seed), epoch)]

    assert listed(1, 3) == listed(1, 3)
    assert listed(1, 3) != listed(1, 4)
    assert listed(1, 3) != listed(2, 3)


def test_batches_differ_between_epochs_and_have_similar_lengths():
    made = batches(count=2111)
    sets = [{frozenset(one.tolist()) for one in order(made, number)} for number in range(2)]
    assert len(sets[0] & sets[1]) < 5
    lengths = made.lengths
    padded = sum(len(one) * lengths[one].max() for one in order(made, 0))
    assert padded < 1.2 * lengths.sum()


def test_padding_is_on_the_right():
    made = batches()
    which = np.array([5, 0, 17])
    inputs = made.inputs(which, torch.device("cpu"))
    lengths = made.lengths[which].tolist()
    assert inputs["ids"].shape == (3, max(lengths))
    assert inputs["mask"].lengths.tolist() == lengths
    for row, (index, length) in enumerate(zip(which, lengths, strict=True)):
        assert inputs["ids"][row, :length].tolist() == made.ids[index].tolist()
        assert (inputs["ids"][row, length:] == PAD).all()
    batch = made.epoch(0)[0]
    rows = np.array([2, 0])
    assert made.truth_of(batch, rows).tolist() == made.truth[batch.examples[rows]].tolist()


def test_digest_depends_on_texts_and_labels():
    one, other = batches(), batches()
    assert one.digest == other.digest
    other.truth[3] = ~other.truth[3]
    assert one.digest != other.digest
    assert batches(data_seed=2).digest != one.digest

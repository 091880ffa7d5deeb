"""The scores of models that ignore their input, with which a run is compared at its end."""

from __future__ import annotations

import math

import numpy as np
import pytest

from regard.tasks.label_validation import baseline_score
from regard.tasks.sentences import Sentences, frequency_loss, without_first
from regard.tasks.translation.validation import PairValidation
from regard.text.pairs import Pair

# Of 7 texts, 4 have the first label, 2 the second and 1 the third.
ONE_LABEL = np.eye(3, dtype=bool)[[0, 0, 1, 2, 0, 1, 0]]


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        ("accuracy", 4 / 7),
        # F1 of the first label is 2 * 4 / (7 + 4), of the others 0.
        ("macro_f1", 8 / 11 / 3),
        ("micro_f1", 4 / 7),
        # the entropy of the frequencies
        ("loss", -(4 * math.log(7 / 4) + 2 * math.log(7 / 2) + math.log(7)) / 7),
    ],
)
def test_labels_by_their_frequencies(metric, score):
    assert baseline_score(ONE_LABEL, ["a", "b", "c"], metric) == pytest.approx(score, rel=1e-12)


def test_several_labels_by_their_frequencies():
    truth = np.array([[1, 0], [1, 0], [1, 1], [0, 1], [1, 0]], dtype=bool)
    assert baseline_score(truth, ["a", "b"], "accuracy", several=True) == pytest.approx(3 / 5)  # only "a"
    entropy = -(4 * math.log(4 / 5) + math.log(1 / 5) + 2 * math.log(2 / 5) + 3 * math.log(3 / 5)) / 10
    assert baseline_score(truth, ["a", "b"], "loss", several=True) == pytest.approx(-entropy, rel=1e-12)


def test_equal_labels_have_no_baseline():
    """No model can be better than always answering the only label."""
    assert baseline_score(ONE_LABEL[:2], ["a", "b", "c"], "accuracy") is None


def test_tokens_by_their_frequencies():
    """Laplace's rule: of 5 training tokens 2 are the token 1, and the vocabulary has 7: (2 + 1) / (5 + 7)."""
    training, held_out = np.array([1, 1, 3, 4, 4]), np.array([1, 6])
    assert frequency_loss(training, held_out, 7) == pytest.approx((math.log(12 / 3) + math.log(12 / 1)) / 2)


def test_first_tokens_are_not_predicted():
    sentences = Sentences.from_ids([[5, 1, 2], [], [5], [5, 3]], 7)
    assert without_first(sentences).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("targets", "score"),
    [
        # Of the n-grams of words, 1 to 4, half are right, and the lengths are equal: BLEU.
        (["one two three four five"] * 2 + ["six seven eight nine ten"] * 2, 50.0),
        # Of the n-grams of characters, 1 and 2, half are right, and half of those of the references are found: chrF.
        (["ab", "ab", "cd", "cd"], 50.0),
        (["all the same for everyone"] * 3, 0.00499),
    ],
)
def test_one_translation_for_every_source(targets, score):
    pairs = [Pair("source", target, "line") for target in targets]
    assert PairValidation(pairs, None).baseline() == pytest.approx(score)

"""Words that occur in several texts."""

from dataclasses import replace

import numpy as np
import pytest

from regard.view.reading import Reading, Tokens
from regard.view.shared_words import shared_words


def make_reading(text: str, hidden: np.ndarray) -> Reading:
    spans, start = [], 0
    for word in text.split():
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return Reading(
        Tokens(text, tuple(text.split()), tuple(spans), (False,) * len(spans)), (), hidden.astype(np.float32)
    )


def test_cosines_layer_by_layer() -> None:
    first = make_reading("an Apple", np.array([[[0, 1], [3, 4]], [[0, 1], [1, 0]], [[0, 1], [0, 0]]]))
    second = make_reading("apple pie", np.array([[[6, 8], [1, 1]], [[0, 5], [1, 1]], [[1, 1], [1, 1]]]))
    (shared,) = shared_words([first, second])
    assert (shared.word, shared.first, shared.second) == ("apple", 0, 1)
    # the same direction; a right angle; a vector of zeros, which has no direction
    assert shared.cosines == pytest.approx((1, 0, 0))


def test_vector_of_a_word_is_the_mean_of_its_tokens() -> None:
    pieces = Tokens("seafarers", ("sea", "farers"), ((0, 3), (3, 9)), (False, False))
    first = Reading(pieces, (), np.array([[[2, 0], [0, 2]]], dtype=np.float32))
    second = make_reading("Seafarers", np.array([[[5, 5]]]))
    assert shared_words([first, second])[0].cosines == pytest.approx((1,))


def test_no_shared_word() -> None:
    assert shared_words([make_reading("a", np.ones((1, 1, 2))), make_reading("b", np.ones((1, 1, 2)))]) == ()


def test_function_words_and_unknown_words_are_not_compared() -> None:
    first, second = (
        make_reading("The hedgehog is in Rome", np.ones((1, 5, 2))),
        make_reading("the hedgehog is in Rome", np.ones((1, 5, 2))),
    )
    assert [one.word for one in shared_words([first, second])] == ["hedgehog", "rome"]
    pieces = ("the", "[UNK]", "is", "in", "rome")
    unknown = Reading(replace(second.tokens, pieces=pieces), (), second.hidden)
    assert [one.word for one in shared_words([first, unknown])] == ["rome"]

"""Times from weights of cross-attention: constructed heads whose steps are known, and an exhaustive search."""

from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest

from regard.errors import DataError
from regard.transcription.attention_times import (
    MAX_HEADS,
    _find_path,
    align_steps,
    find_attention_times,
    score_head,
)

BOUNDS = (0, 11, 17, 31, 37, 53)
"""The frames at which the steps of a constructed head begin, and their number."""


def follower(strength: float = 1.0) -> np.ndarray:
    """Weights (5, 53) of a head whose step i attends to its own frames alone, or with a share of ``strength``."""
    weights = np.full((5, 53), (1 - strength) / 53)
    for step, (begin, end) in enumerate(pairwise(BOUNDS)):
        weights[step, begin:end] += strength / (end - begin)
    return weights


def random_head(numbers: np.random.Generator) -> np.ndarray:
    return numbers.dirichlet(np.full(53, 0.3), size=5)


@pytest.mark.parametrize("strength", [1.0, 0.4, 0.1])
def test_times_of_a_head_that_follows_the_sound_are_its_own(strength):
    frames = align_steps(follower(strength)[None])
    np.testing.assert_array_equal(frames[:, 0], BOUNDS[:-1])
    np.testing.assert_array_equal(frames[:, 1], BOUNDS[1:])


def test_heads_that_follow_are_chosen_among_others():
    """Also beside heads that look at one place, at the first frame, or at all frames."""
    numbers = np.random.default_rng(11)
    fixed, uniform = np.zeros((5, 53)), np.full((5, 53), 1 / 53)
    fixed[:, 0] = 1.0
    layers = [
        np.stack([random_head(numbers), fixed, uniform]),
        np.stack([follower(0.9), random_head(numbers), follower()[::-1]]),
        np.stack([uniform, follower(), random_head(numbers)]),
    ]
    times = find_attention_times(layers)
    assert [head[:2] for head in times.heads] == [(2, 1), (1, 0)]
    assert times.heads[0].score > times.heads[1].score > 0.2
    np.testing.assert_array_equal(times.frames[:, 0], BOUNDS[:-1])
    assert [score_head(head) for head in (fixed, uniform, follower()[::-1])] == pytest.approx([0, 0, 0], abs=1e-12)


def test_score_of_a_diagonal_head_is_1_and_of_others_follows_the_equation():
    assert score_head(np.eye(7)) == pytest.approx(1)
    assert score_head(np.eye(7)[:, ::-1]) == 0
    half = np.eye(7)[[0, 2, 1, 3]]  # five of six pairs in order: order 4/6; reach 3/6; focus 1
    assert score_head(half) == pytest.approx(4 / 6 * 3 / 6)
    assert score_head(np.full((1, 7), 1 / 7)) == pytest.approx(0)


def test_given_heads_are_used_and_named_by_their_score():
    numbers = np.random.default_rng(3)
    layers = [np.stack([random_head(numbers), follower(0.2)]), np.stack([follower(), random_head(numbers)])]
    times = find_attention_times(layers, [(0, 1)])
    assert [head[:2] for head in times.heads] == [(0, 1)]
    np.testing.assert_array_equal(times.frames[:, 0], BOUNDS[:-1])
    for wrong in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(DataError, match="alignment"):
            find_attention_times(layers, [wrong])


def test_at_most_ten_heads_are_chosen():
    assert len(find_attention_times([np.stack([follower()] * 13)]).heads) == MAX_HEADS


def test_weights_of_a_part_of_the_frames_count_as_shares_of_it():
    times = find_attention_times([0.01 * follower()[None]])
    assert times.heads[0].score == pytest.approx(find_attention_times([follower()[None]]).heads[0].score)
    assert find_attention_times([np.zeros((1, 3, 5))]).frames.shape == (3, 2)


@pytest.mark.parametrize(("steps", "frames"), [(1, 1), (1, 5), (3, 1), (3, 5), (4, 4), (5, 3)])
def test_path_is_the_best_of_all(steps, frames):
    """Compared with every monotone path: where each step begins and ends, one forward at a time."""
    gain = np.random.default_rng(steps * 10 + frames).normal(size=(steps, frames))

    def total(starts: tuple[int, ...], joins: tuple[int, ...]) -> float:
        ends = [start - 1 + join for start, join in zip(starts[1:], joins, strict=True)] + [frames - 1]
        if any(end < start for start, end in zip(starts, ends, strict=True)):
            return -np.inf
        return sum(
            gain[step, start : end + 1].sum() for step, (start, end) in enumerate(zip(starts, ends, strict=True))
        )

    best = {}
    for rest in combinations_with_replacement(range(frames), steps - 1):
        for code in range(2 ** (steps - 1)):
            joins = tuple(code >> bit & 1 for bit in range(steps - 1))
            best[(0, *rest)] = max(best.get((0, *rest), -np.inf), total((0, *rest), joins))
    assert tuple(_find_path(gain)) == max(best, key=best.__getitem__)

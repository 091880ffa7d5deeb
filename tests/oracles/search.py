"""Search for the best target: exhaustively, and by beam searches that state what they keep.

    log P(y) = sum_t log P(y_t | y_1 .. y_t-1)          y ends with the end token, or is cut after ``max_tokens``
    score(y) = log P(y) / ((5 + |y|) / 6)^alpha         |y| includes the end token

Wu et al. 2016, equation 14, without coverage. ``next_log_probs(ids)`` returns log P(. | ids), an array over the
vocabulary. Targets are tuples of ids without the end token; finished targets come before cut ones.
"""

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

NextLogProbabilities = Callable[[tuple[int, ...]], np.ndarray]


class Target(NamedTuple):
    ids: tuple[int, ...]
    score: float
    log_probability: float
    finished: bool


def divisor(length: int, alpha: float) -> float:
    return math.pow(5 + length, alpha) / math.pow(5 + 1, alpha)


def sort_targets(targets: list[Target]) -> list[Target]:
    return sorted(targets, key=lambda target: (not target.finished, -target.score))


def exhaustive(
    next_log_probs: NextLogProbabilities, end: int, banned: Collection[int], max_tokens: int, alpha: float = 0.0
) -> list[Target]:
    """Return every possible target, the best first."""
    targets = []

    def extend(ids: tuple[int, ...], total: float) -> None:
        length = len(ids) + 1
        for token, log_probability in enumerate(next_log_probs(ids)):
            if token in banned or log_probability == -math.inf:
                continue
            new_total = total + log_probability
            if token == end:
                targets.append(Target(ids, new_total / divisor(length, alpha), new_total, True))
            elif length == max_tokens:
                targets.append(Target((*ids, token), new_total / divisor(length, alpha), new_total, False))
            else:
                extend((*ids, token), new_total)

    extend((), 0.0)
    return sort_targets(targets)


def beam(
    next_log_probs: NextLogProbabilities,
    end: int,
    banned: Collection[int],
    max_tokens: int,
    width: int,
    alpha: float = 0.0,
) -> list[Target]:
    """Return all hypotheses of a beam of ``width``, finished or cut, the best first. It runs for ``max_tokens``."""
    live, finished = [((), 0.0)], []
    for length in range(1, max_tokens + 1):
        candidates = _extend(live, next_log_probs, banned)
        finished += _finished(candidates[:width], end, length, alpha)
        live = _unfinished(candidates, end)[:width]
    return sort_targets(finished + _truncate(live, max_tokens, alpha))


def patient_beam(
    next_log_probs: NextLogProbabilities,
    end: int,
    banned: Collection[int],
    max_tokens: int,
    width: int,
    alpha: float,
    *,
    best: int,
    patience: float,
) -> list[Target]:
    """Return the ``best`` of a beam that stops once ``patience`` * ``width`` are finished (Kasai et al. 2022).

    A hypothesis that can no longer be among the ``best``, however it ends, is dropped.
    """
    live, finished, finished_count = [((), 0.0)], [], 0
    for length in range(1, max_tokens + 1):
        candidates = _extend(live, next_log_probs, banned)
        finished += _finished(candidates[:width], end, length, alpha)
        finished_count += sum(token == end for _, token, _ in candidates[:width])
        if finished_count >= patience * width:
            return sort_targets(finished)[:best]
        scores = sorted((one.score for one in finished), reverse=True)
        to_beat = scores[best - 1] if len(scores) >= best else -math.inf
        live = [
            (ids, total)
            for ids, total in _unfinished(candidates, end)[:width]
            if total / divisor(max_tokens, alpha) > to_beat
        ]
    return sort_targets(finished + _truncate(live, max_tokens, alpha))[:best]


Live = list[tuple[tuple[int, ...], float]]
Candidates = list[tuple[tuple[int, ...], int, float]]


def _extend(live: Live, next_log_probs: NextLogProbabilities, banned: Collection[int]) -> Candidates:
    candidates = [
        (ids, token, total + log_probability)
        for ids, total in live
        for token, log_probability in enumerate(next_log_probs(ids))
        if token not in banned and log_probability > -math.inf
    ]
    return sorted(candidates, key=lambda one: -one[2])


def _finished(candidates: Candidates, end: int, length: int, alpha: float) -> list[Target]:
    return [
        Target(ids, total / divisor(length, alpha), total, True) for ids, token, total in candidates if token == end
    ]


def _unfinished(candidates: Candidates, end: int) -> Live:
    return [((*ids, token), total) for ids, token, total in candidates if token != end]


def _truncate(live: Live, max_tokens: int, alpha: float) -> list[Target]:
    return [Target(ids, total / divisor(max_tokens, alpha), total, False) for ids, total in live]

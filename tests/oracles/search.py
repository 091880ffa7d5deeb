"""Search for the best target: exhaustively, and by beam searches that state what they keep.

    log P(y) = sum_t log P(y_t | y_1 .. y_t-1)          y ends with the end token, or is cut after ``most`` tokens
    score(y) = log P(y) / ((5 + |y|) / 6)^alpha         |y| includes the end token

Wu et al. 2016, equation 14, without coverage. ``following(ids)`` returns log P(. | ids), an array over the vocabulary.
Targets are tuples of ids without the end token; finished targets come before cut ones.
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
    following: NextLogProbabilities, end: int, never: Collection[int], most: int, alpha: float = 0.0
) -> list[Target]:
    """Return every possible target, the best first."""
    found = []

    def grow(ids: tuple[int, ...], total: float) -> None:
        length = len(ids) + 1
        for token, log_probability in enumerate(following(ids)):
            if token in never or log_probability == -math.inf:
                continue
            whole = total + log_probability
            if token == end:
                found.append(Target(ids, whole / divisor(length, alpha), whole, True))
            elif length == most:
                found.append(Target((*ids, token), whole / divisor(length, alpha), whole, False))
            else:
                grow((*ids, token), whole)

    grow((), 0.0)
    return sort_targets(found)


def beam(
    following: NextLogProbabilities, end: int, never: Collection[int], most: int, width: int, alpha: float = 0.0
) -> list[Target]:
    """Return all hypotheses of a beam of ``width``, finished or cut, the best first. It runs for ``most`` tokens."""
    live, found = [((), 0.0)], []
    for length in range(1, most + 1):
        grown = _extend(live, following, never)
        found += _finished(grown[:width], end, length, alpha)
        live = _unfinished(grown, end)[:width]
    return sort_targets(found + _truncate(live, most, alpha))


def patient_beam(
    following: NextLogProbabilities,
    end: int,
    never: Collection[int],
    most: int,
    width: int,
    alpha: float,
    *,
    best: int,
    patience: float,
) -> list[Target]:
    """Return the ``best`` of a beam that stops once ``patience`` * ``width`` are finished (Kasai et al. 2022).

    A hypothesis that can no longer be among the ``best``, however it ends, is dropped.
    """
    live, found, ended = [((), 0.0)], [], 0
    for length in range(1, most + 1):
        grown = _extend(live, following, never)
        found += _finished(grown[:width], end, length, alpha)
        ended += sum(token == end for _, token, _ in grown[:width])
        if ended >= patience * width:
            return sort_targets(found)[:best]
        scores = sorted((one.score for one in found), reverse=True)
        to_beat = scores[best - 1] if len(scores) >= best else -math.inf
        live = [
            (ids, total) for ids, total in _unfinished(grown, end)[:width] if total / divisor(most, alpha) > to_beat
        ]
    return sort_targets(found + _truncate(live, most, alpha))[:best]


Live = list[tuple[tuple[int, ...], float]]
Extended = list[tuple[tuple[int, ...], int, float]]


def _extend(live: Live, following: NextLogProbabilities, never: Collection[int]) -> Extended:
    grown = [
        (ids, token, total + log_probability)
        for ids, total in live
        for token, log_probability in enumerate(following(ids))
        if token not in never and log_probability > -math.inf
    ]
    return sorted(grown, key=lambda one: -one[2])


def _finished(grown: Extended, end: int, length: int, alpha: float) -> list[Target]:
    return [Target(ids, total / divisor(length, alpha), total, True) for ids, token, total in grown if token == end]


def _unfinished(grown: Extended, end: int) -> Live:
    return [((*ids, token), total) for ids, token, total in grown if token != end]


def _truncate(live: Live, most: int, alpha: float) -> list[Target]:
    return [Target(ids, total / divisor(most, alpha), total, False) for ids, total in live]

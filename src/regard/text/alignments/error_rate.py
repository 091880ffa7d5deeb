"""Alignment error rate (AER): how well predicted links agree with gold links.

    precision = |A & P| / |A|,   recall = |A & S| / |S|,   AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)

A are the predicted links, S and P the sure and possible gold links. Och and Ney 2003, "A systematic comparison of
various statistical alignment models", section 6. Counts are summed over the corpus before dividing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from regard.errors import DataError
from regard.text.alignments.alignment import Alignment


@final
@dataclass(frozen=True)
class AlignmentScores:
    """Alignment error rate, precision and recall, each from 0 to 1, and the counts behind them.

    ``sentences`` counts sentence pairs, ``links`` predicted links, ``sure`` sure gold links. A ratio with denominator
    0 counts as perfect: precision and recall are then 1, the error rate 0.
    """

    error_rate: float
    precision: float
    recall: float
    sentences: int
    links: int
    sure: int


def alignment_scores(found: Sequence[Alignment], gold: Sequence[Alignment]) -> AlignmentScores:
    """Score the alignments ``found`` against ``gold``, one per sentence pair. All links of ``found`` count alike.

    Raises DataError if the numbers of sentences differ.
    """
    if len(found) != len(gold):
        raise DataError(
            "the number of alignments differs from the gold standard",
            expected=f"{len(gold):,} sentences, as in the gold standard",
            got=f"{len(found):,} sentences",
            do="check that both hold the same sentences in the same order",
        )
    links = sum(len(one.possible) for one in found)
    sure = sum(len(one.sure) for one in gold)
    possible_found = sum(len(one.possible & known.possible) for one, known in zip(found, gold, strict=True))
    sure_found = sum(len(one.possible & known.sure) for one, known in zip(found, gold, strict=True))
    return AlignmentScores(
        error_rate=1 - _ratio(sure_found + possible_found, links + sure),
        precision=_ratio(possible_found, links),
        recall=_ratio(sure_found, sure),
        sentences=len(gold),
        links=links,
        sure=sure,
    )


def _ratio(count: int, whole: int) -> float:
    return count / whole if whole else 1.0

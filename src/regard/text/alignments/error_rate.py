"""How well found links agree with those of annotators.

    precision = |A & P| / |A|,   recall = |A & S| / |S|,   AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)

A are the links found, S and P the sure and the possible ones. Och and Ney 2003, "A systematic comparison of various
statistical alignment models", section 6. Over a corpus the counts are summed, then divided.
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
    """Alignment error rate, precision and recall, each from 0 to 1, and what they were counted over.

    ``links`` are those found, ``sure`` those that annotators are sure of. Where there is nothing to divide by, nothing
    is wrong and nothing is missed: precision and recall are 1, the error rate is 0.
    """

    error_rate: float
    precision: float
    recall: float
    sentences: int
    links: int
    sure: int


def alignment_scores(found: Sequence[Alignment], gold: Sequence[Alignment]) -> AlignmentScores:
    """How well ``found`` agrees with ``gold``. All links of ``found`` count, also those marked as merely possible.

    Raises DataError where they are not of the same number of sentences.
    """
    if len(found) != len(gold):
        raise DataError(
            "there are not as many alignments found as in the gold standard",
            expected=f"{len(gold):,} sentences, as in the gold standard",
            got=f"{len(found):,} sentences",
            do="check that both are of the same sentences, in the same order",
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

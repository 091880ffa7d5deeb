"""Read all pairs of several files at once, and report what was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.columns import PairFormat
from regard.errors import DataError
from regard.log import log
from regard.text.pairs.pair import Pair, PairCounts, PairOrSkipped
from regard.text.pairs.read import read_pairs


def read_and_report(paths: Sequence[Path], where: PairFormat) -> list[PairOrSkipped]:
    """Read all pairs of the files in order, report skipped entries as notes. Raises DataError if there is no pair."""
    counts = PairCounts()
    found = list(read_pairs(paths, where))
    pairs = list(counts.count(found))
    for sentence in counts.sentences():
        log.info(sentence)
    if not pairs:
        raise DataError(
            "the data has no usable pair",
            expected="sentences and their translations",
            got=f"0 pairs in {', '.join(map(str, paths))}",
            do="check the columns, fields and languages of the data",
        )
    return found


def read_and_report_pairs(paths: Sequence[Path], where: PairFormat) -> list[Pair]:
    """Read only the usable pairs, and report the rest, as ``read_and_report`` does."""
    return [one for one in read_and_report(paths, where) if isinstance(one, Pair)]

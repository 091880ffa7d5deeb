"""All pairs of some files at once, while what was left out is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from regard.errors import DataError
from regard.text.pairs.pair import Pair, PairCounts, PairOrSkipped
from regard.text.pairs.read import PairFormat, read_pairs


def read_and_report(paths: Sequence[Path], where: PairFormat, say: Callable[[str], None]) -> list[PairOrSkipped]:
    """All that is found in the files, in order; ``say`` hears what was left out. Raises DataError without any pair."""
    tally = PairCounts()
    found = list(read_pairs(paths, where))
    pairs = list(tally.count(found))
    for sentence in tally.sentences():
        say(sentence)
    if not pairs:
        raise DataError(
            "there is no pair in what was given",
            expected="sentences and their translations",
            got=f"0 pairs in {', '.join(map(str, paths))}",
            do="check the columns, fields or languages that the pairs are taken from",
        )
    return found


def read_and_report_pairs(paths: Sequence[Path], where: PairFormat, say: Callable[[str], None]) -> list[Pair]:
    """The pairs among it."""
    return [one for one in read_and_report(paths, where, say) if isinstance(one, Pair)]

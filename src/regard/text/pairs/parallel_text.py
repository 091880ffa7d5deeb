"""Sentence pairs from two parallel text files: line i of one is the translation of line i of the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path

from regard.errors import DataError
from regard.text.line import Line, skip_reason
from regard.text.line_reader import LineReader
from regard.text.pairs.pair import PairOrSkipped, make_pair
from regard.text.skip_counts import Skipped


def read_parallel_text(source: Path, target: Path) -> Iterator[PairOrSkipped]:
    """Read the pairs of two files, plain or gzip.

    Raises DataError, at the end of the files, if their numbers of lines differ: a line is missing, and every pair after
    it would be wrong.
    """
    counts = [0, 0]
    with closing(LineReader(source)) as sources, closing(LineReader(target)) as targets:
        for left, right in zip_longest(sources, targets):
            counts[0] += left is not None
            counts[1] += right is not None
            if left is not None and right is not None:
                yield _pair_lines(left, right, f"line {left.number} of {sources.name} and {targets.name}")
    if counts[0] != counts[1]:
        raise DataError(
            f"{source} and {target} differ in their number of lines, so their lines are not translations of each other",
            expected="line i of one to be the translation of line i of the other",
            got=f"{counts[0]:,} lines in {source}, {counts[1]:,} in {target}",
            do="find the line that is missing in the shorter file",
        )


def _pair_lines(left: Line, right: Line, place: str) -> PairOrSkipped:
    for line in (left, right):
        if line.problem is not None:
            return Skipped(line.name, skip_reason(line))
    return make_pair(left.text, right.text, place)

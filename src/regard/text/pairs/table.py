"""Tab-separated values: a pair a line, in two of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from regard.errors import OptionError
from regard.text.lines import Source
from regard.text.pairs.aligned import reason_of
from regard.text.pairs.pair import Found, LeftOut, paired

_TITLES = {"source", "target", "src", "tgt", "trg"}


def table(path: Path, *, columns: tuple[int, int] = (1, 2), titles: frozenset[str] = frozenset()) -> Iterator[Found]:
    """The pairs of a file, plain or gzip. Columns count from 1.

    A first line is a heading, and no pair, where both of its cells are one of "source", "target", "src", "tgt", "trg"
    or of ``titles``. Raises OptionError for columns that are not two different ones.
    """
    first, second = columns
    if min(columns) < 1 or first == second:
        raise OptionError(
            "a table's columns are two different ones, counted from 1",
            expected="for example 1,2, or 2,1 for the other direction",
            got=f"{first},{second}",
            do="look at the first line of the file",
        )
    known = _TITLES | {title.lower() for title in titles}
    with closing(Source(path)) as lines:
        for line in lines:
            if line.problem is not None:
                yield LeftOut(line.name, reason_of(line))
                continue
            cells = line.text.split("\t")
            if len(cells) < max(columns):
                reason = (
                    "the line is blank" if not line.text.strip() else f"there are fewer than {max(columns)} columns"
                )
                yield LeftOut(line.name, reason)
                continue
            source, target = cells[first - 1], cells[second - 1]
            if line.number == 1 and {source.strip().lower(), target.strip().lower()} <= known:
                continue
            yield paired(source, target, line.name)

"""The kinds of the columns of a table, judged by many rows: texts, labels, numbers, identifiers, dates, addresses.

0,a1,Go.,Va !,2.5         numbers, identifiers, texts, texts, numbers
1,a2,Hi.,Salut !,0.7
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import NamedTuple, final


@final
class ColumnKind(Enum):
    """The contents of a column; the values are words for messages."""

    BLANK = "nothing"
    NUMBERS = "numbers"
    DATES = "dates"
    ADDRESSES = "addresses"
    IDENTIFIERS = "identifiers"
    LICENCES = "licences"
    LABELS = "labels"
    TEXTS = "texts"


_MISSING = frozenset({"", "nan", "null", "none", "na", "n/a", "<na>", "nil", "-", "?"})
"""Cells that programs write for a missing value."""
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_FORMS = {
    ColumnKind.NUMBERS: re.compile(
        r"[#№$€£]?\s?[+-]?(\d+|\d{1,3}([ ,.'\u00a0\u202f]\d{3})+)([.,]\d+)?(e[+-]?\d+)?\s?[%.]?", re.IGNORECASE
    ),
    ColumnKind.DATES: re.compile(
        r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ,].{0,30})?"
        r"|\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?"
        rf"|([a-z]{{3,9}},?\s)?(\d{{1,2}}\.?\s{_MONTH}|{_MONTH}\s\d{{1,2}}),?\s(\d\d:\d\d(:\d\d)?\s([a-z]+\s)?)?\d{{4}}.{{0,30}}",
        re.IGNORECASE,
    ),
    ColumnKind.ADDRESSES: re.compile(
        r"[a-z][a-z0-9+.-]{1,9}://\S+|www\.\S+|[^\s@]+@[^\s@]+\.[^\s@]+|@\w+"
        r"|[a-z]:\\\S+|\S*[/\\]\S*[/\\]\S*|\S+[/\\]\S+\.\w{1,5}"
        r"|\S+\.(jpe?g|png|gif|webp|tiff?|bmp|wav|mp3|flac|ogg|txt|html?|csv|tsv|jsonl?|xml|pdf|docx?|com|org|net)",
        re.IGNORECASE,
    ),
    ColumnKind.IDENTIFIERS: re.compile(r"(?=\S*\d)[\w.:/#@+-]{1,80}", re.ASCII),
    ColumnKind.LICENCES: re.compile(r"(cc[- ](by|0)|cc0|creative commons|©|\(c\) ).*", re.IGNORECASE | re.DOTALL),
}
"""Forms of a cell that is no text; the first that matches counts."""
_END_OF_SENTENCE = re.compile(r"""[.!?…。！？।؟։]["'»”’)\]\s]*$""")
_MIN_SHARE = 0.9
"""Share of the cells that must have one of the forms."""


@final
class ColumnContents(NamedTuple):
    """The contents of a column: its kind, the set of its cells in lower case, and what its texts are like.

    ``is_counter`` says whether its numbers go up by one, as row numbers do; ``is_sentences`` whether most cells end
    like a sentence or have four words; ``repeats`` whether each value occurs twice or more on average.
    """

    kind: ColumnKind
    values: frozenset[str] = frozenset()
    is_counter: bool = False
    is_sentences: bool = False
    repeats: bool = False
    size: int = 0
    """UTF-8 bytes of all cells."""

    @property
    def is_text(self) -> bool:
        """Whether the column holds texts, or short ones that repeat."""
        return self.kind in (ColumnKind.TEXTS, ColumnKind.LABELS)


def is_missing(cell: str) -> bool:
    """Whether a cell is blank, or has a word for a missing value."""
    return cell.strip().lower() in _MISSING


def describe_columns(first: Sequence[str], columns: Sequence[ColumnContents]) -> str:
    """Name the columns of a table by the cells of its first row, with what they hold, for messages."""
    kinds = [column.kind.value for column in columns] + [ColumnKind.BLANK.value] * len(first)
    return ", ".join(f"{cell.strip()[:30]!r} ({kind})" for cell, kind in zip(first[:8], kinds, strict=False)) or "none"


def find_form(cell: str) -> ColumnKind | None:
    """The kind of a cell that has the form of a number, date, address, identifier or licence; None for a text."""
    cell = cell.strip()
    return next((kind for kind, form in _FORMS.items() if len(cell) <= 4096 and form.fullmatch(cell)), None)


def ends_like_a_sentence(cell: str) -> bool:
    """Whether a cell ends with the mark of a sentence."""
    return _END_OF_SENTENCE.search(cell) is not None


def judge_columns(rows: Sequence[Sequence[str]]) -> list[ColumnContents]:
    """Judge the columns of rows of cells, which may differ in length."""
    width = max(map(len, rows), default=0)
    return [_judge([row[place] for row in rows if place < len(row)]) for place in range(width)]


def _judge(cells: Sequence[str]) -> ColumnContents:
    cells = [cell.strip() for cell in cells if not is_missing(cell)]
    if not cells:
        return ColumnContents(ColumnKind.BLANK)
    forms = Counter(find_form(cell) for cell in cells)
    size = sum(len(cell.encode("utf-8", "replace")) for cell in cells)
    values = frozenset(cell.lower() for cell in cells)
    repeats = len(cells) >= 4 and 2 * len(values) <= len(cells)
    if forms[None] <= (1 - _MIN_SHARE) * len(cells):
        kind = max((kind for kind in forms if kind is not None), key=forms.__getitem__)
        is_counter = kind is ColumnKind.NUMBERS and _goes_up_by_one(cells)
        return ColumnContents(kind, values, is_counter, repeats=repeats, size=size)
    words = median(len(cell.split()) for cell in cells)
    is_sentences = words >= 4 or 2 * sum(map(ends_like_a_sentence, cells)) > len(cells)
    kind = ColumnKind.LABELS if repeats and words <= 3 and max(map(len, cells)) <= 64 else ColumnKind.TEXTS
    return ColumnContents(kind, values, is_sentences=is_sentences, repeats=repeats, size=size)


def _goes_up_by_one(cells: Sequence[str]) -> bool:
    numbers = [int(cell) for cell in cells if cell.isdecimal() and len(cell) < 19]
    steps = [after - before == 1 for before, after in pairwise(numbers)]
    return len(numbers) == len(cells) > 1 and sum(steps) >= _MIN_SHARE * len(steps)

"""Whether the first row of a table has the names of its columns, judged by the rows after it.

,en,fr                 names: the first column has a number in every other row
0,A small dog.,..
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.text.column_kinds import (
    ColumnContents,
    ColumnKind,
    ends_like_a_sentence,
    find_form,
    is_missing,
    judge_columns,
)

_USUAL_NAMES = frozenset((
    "id", "ids", "idx", "index", "#", "row", "key", "uid", "guid", "hash", "text", "texts", "sentence", "content",
    "review", "document", "comment", "message", "tweet", "question", "body", "label", "labels", "class", "category",
    "categories", "sentiment", "topic", "intent", "tags", "stars", "rating", "score", "url", "link", "path", "file",
    "filename", "date", "lang", "language", "license", "licence", "source", "target", "src", "tgt", "trg", "original",
    "translation", "sentence_id",
))  # fmt: skip
"""Usual names of columns."""
_NAME = re.compile(r"[^\W\d][\w .:/()#-]*")
_CATEGORIES = (ColumnKind.NUMBERS, ColumnKind.DATES, ColumnKind.ADDRESSES)


def has_heading(rows: Sequence[Sequence[str]], known: Sequence[bool] = ()) -> bool:
    """Whether the first of these rows of cells has the names of the columns.

    ``known`` says which of its cells the caller knows to be a name. In order: a word above numbers, dates, addresses or
    identifiers is a name; a cell that is like those below it is none; a row of usual names is a heading; and so is one
    of short names above sentences.
    """
    first, rest = rows[0], rows[1:]
    columns = judge_columns(rest)[: len(first)]
    evidence = [_compare(cell, column) for cell, column in zip(first, columns, strict=False)]
    usual = [name.strip().lower() in _USUAL_NAMES for name in first]
    usual = [usual_name or (place < len(known) and known[place]) for place, usual_name in enumerate(usual)]
    cells = [place for place, cell in enumerate(first) if cell.strip()]
    are_different = len({first[place].strip().lower() for place in cells}) == len(cells)
    if True in evidence and (False not in evidence or any(usual)):
        return True
    if False in evidence or not cells or not are_different:
        return False
    if _starts_with_index(first, columns) or all(usual[place] for place in cells):
        return True
    if not all(_is_name(first[place]) for place in cells):
        return False
    texts = [column.is_sentences for column in columns if column.kind is ColumnKind.TEXTS]
    return (len(first) > 2 and any(usual)) or (bool(texts) and all(texts))


def _compare(cell: str, column: ColumnContents) -> bool | None:
    """True if a cell is unlike the cells below it, as a name is; False if it is like them; None if neither is clear."""
    if is_missing(cell) or column.kind is ColumnKind.BLANK:
        return None
    form = find_form(cell)
    if column.kind is ColumnKind.LABELS:
        return False if cell.strip().lower() in column.values else None
    if column.is_text:
        return False if form in _CATEGORIES or (ends_like_a_sentence(cell) and column.is_sentences) else None
    return form not in (column.kind, *_CATEGORIES)


def _starts_with_index(first: Sequence[str], columns: Sequence[ColumnContents]) -> bool:
    """Whether the first column has numbers that go up by one below a blank cell, as pandas writes it."""
    return bool(columns) and len(first) > 1 and not first[0].strip() and columns[0].is_counter


def _is_name(cell: str) -> bool:
    return len(cell.split()) <= 3 and _NAME.fullmatch(cell.strip()) is not None

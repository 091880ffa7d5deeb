"""The columns of the text and of the label in a table, or their fields in JSON lines: by name, by number, or found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

from regard.columns import Columns
from regard.errors import DataError
from regard.text.column_kinds import ColumnContents, ColumnKind, describe_columns, judge_columns
from regard.text.lookahead import Lookahead
from regard.text.table_column import TEXT_NAMES, describe_sides, find_column, find_name, find_text_name
from regard.text.table_heading import has_heading
from regard.text.table_rows import TableRow, read_ahead

LABEL_NAMES = (
    "label", "labels", "class", "category", "categories", "target", "sentiment", "topic", "intent", "tags", "stars",
)  # fmt: skip
"""Names by which the column of the label is found, the usual one first."""
_LABEL_KINDS = (ColumnKind.LABELS, ColumnKind.NUMBERS, ColumnKind.IDENTIFIERS)


@final
class LabelColumns(NamedTuple):
    """The indices of the columns of text and label; whether the first row is a heading; and whether that is a guess."""

    text: int
    label: int
    is_heading: bool
    is_guess: bool = True


def find_columns(first: TableRow, rows: Lookahead[TableRow], columns: Columns | None, name: str) -> LabelColumns:
    """Find the columns of text and label by the first rows of the table ``name``, unless ``columns`` are given.

    They are found by their names, else by what they hold. Raises DataError if the header lacks a column, or if it is
    ambiguous which columns are meant.
    """
    cells = read_ahead(first, rows)
    if columns is not None:
        text, label = (find_column(first.cells, column, name) for column in columns)
        if any(isinstance(column, str) for column in columns):
            return LabelColumns(text, label, is_heading=True, is_guess=False)
        is_named = first.is_names or _is_header(first.cells, text, label)
        return LabelColumns(text, label, is_named or has_heading(cells), is_guess=not is_named)
    is_heading = first.is_names or has_heading(cells)
    judged = judge_columns(cells[1:] if is_heading and len(cells) > 1 else cells)
    named = find_text_name(first.cells, judged), find_name(first.cells, LABEL_NAMES)
    if named[0] is not None and named[1] is not None and named[0] != named[1]:
        return LabelColumns(named[0], named[1], is_heading=True, is_guess=False)
    found = _guess_columns(first.cells, judged, named)
    if found is None:
        raise _ambiguous_error(first.cells, judged, name)
    return LabelColumns(*found, is_heading=is_heading or named != (None, None))


def _guess_columns(
    first: Sequence[str], judged: Sequence[ColumnContents], named: tuple[int | None, int | None]
) -> tuple[int, int] | None:
    """Guess the columns by what they hold: one of texts and one of labels; None if there are not just these."""
    places = [place for place in range(len(first)) if place < len(judged)]
    texts = [place for place in places if judged[place].kind is ColumnKind.TEXTS]
    labels = [place for place in places if judged[place].repeats and judged[place].kind in _LABEL_KINDS]
    texts = texts if named[0] is None else [named[0]]
    labels = labels if named[1] is None else [named[1]]
    if len(texts) == len(labels) == 1 and texts != labels and judged[texts[0]].is_text:
        return texts[0], labels[0]
    # Of two columns without repeated labels, as in the first rows of many files, the text is the first by custom.
    is_plain = len(first) == len(places) == 2 and named == (None, None)
    is_plain = is_plain and (judged[0].is_text or judged[0].kind is ColumnKind.BLANK)
    return (0, 1) if is_plain and judged[1].kind in (*_LABEL_KINDS, ColumnKind.TEXTS) else None


def describe_label_columns(found: LabelColumns, first: Sequence[str], name: str) -> str:
    """Say which columns are read, and what the first row is taken for."""
    sides = {"text": found.text, "label": found.label}
    return describe_sides(sides, first, name, is_heading=found.is_heading, unit="a text")


def _ambiguous_error(first: Sequence[str], judged: Sequence[ColumnContents], name: str) -> DataError:
    return DataError(
        f"it is ambiguous which columns of {name} hold the text and the label",
        expected='columns named "text" and "label", or just one column of texts and one of labels',
        got=f"{len(first)} columns: {describe_columns(first, judged)}",
        do="name the two, the text first, or give their numbers: `columns=(2, 1)`"
        if len(first) > 1
        else "add the column of the labels",
    )


def _is_header(first: Sequence[str], text: int, label: int) -> bool:
    """Whether the first row names the columns, which were given by number: one of the two names is enough."""
    if max(text, label) >= len(first):
        return False
    return find_name([first[text]], TEXT_NAMES) is not None or find_name([first[label]], LABEL_NAMES) is not None

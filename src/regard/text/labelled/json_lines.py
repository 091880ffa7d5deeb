"""Labelled texts from JSON lines: one object per line, with the text and the labels in two of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from regard.columns import Columns
from regard.errors import DataError
from regard.text.labelled.columns import LABEL_NAMES
from regard.text.labelled.labelled_text import LabelledOrSkipped, labels_of_value, make_labelled
from regard.text.line import skip_reason
from regard.text.line_reader import LineReader
from regard.text.skip_counts import Skipped
from regard.text.table_column import TEXT_NAMES, find_name
from regard.text.tokenizer import is_unicode


def read_json_lines(path: Path, *, columns: Columns | None, split: bool) -> Iterator[LabelledOrSkipped]:
    """Read the texts of a file, plain or gzip.

    ``columns`` are the fields of text and label; None finds them by name in the first object. A label is a string, a
    number, true or false; with ``split`` it may be a list of these, or several in a string. Raises DataError if the
    first object lacks the fields.
    """
    fields: tuple[str, str] | None = None
    with closing(LineReader(path)) as lines:
        for line in lines:
            if line.problem is not None:
                yield Skipped(line.name, skip_reason(line))
                continue
            record = _parse_object(line.text)
            if record is None:
                reason = "the line is blank" if not line.text.strip() else "the line is not a JSON object"
                yield Skipped(line.name, reason)
                continue
            fields = fields or _find_fields(record, columns, line.name)
            text, label = (record.get(name) for name in fields)
            if not isinstance(text, str):
                yield Skipped(line.name, f"there is no text in {fields[0]!r}")
            elif not is_unicode(text + json.dumps(label, ensure_ascii=False)):
                yield Skipped(line.name, "there is a lone surrogate, which is half a character")
            else:
                yield make_labelled(text, labels_of_value(label, split=split), line.name, split=split)


def _parse_object(text: str) -> Mapping[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _find_fields(record: Mapping[str, Any], columns: Columns | None, place: str) -> tuple[str, str]:
    names = list(record)
    if columns is not None:
        fields = [str(column) if str(column) in record else None for column in columns]
        expected = " and ".join(repr(str(column)) for column in columns)
    else:
        indices = find_name(names, TEXT_NAMES), find_name(names, LABEL_NAMES)
        fields = [None if index is None else names[index] for index in indices]
        expected = 'the fields "text" and "label"'
    text, label = fields
    if text is None or label is None:
        raise DataError(
            f"{place} lacks the fields of text and label",
            expected=expected,
            got=", ".join(repr(name[:30]) for name in names[:8]) or "an empty object",
            do='name the two: `columns=("text", "label")`',
        )
    return text, label

"""Sentence pairs from JSON lines: one object per line, with the two texts in two of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.text.line import skip_reason
from regard.text.line_reader import LineReader
from regard.text.pairs.languages import find_sides
from regard.text.pairs.pair import PairOrSkipped, SkippedPair, make_pair
from regard.text.tokenizer import is_unicode

_NESTED_FIELD = "translation"


def read_json_lines(
    path: Path, *, fields: tuple[str, str] | None = None, source: str | None = None, target: str | None = None
) -> Iterator[PairOrSkipped]:
    """Read the pairs of a file, plain or gzip.

    Without ``fields`` they are detected in the first object: the fields named by the languages ``source`` and
    ``target``, or "source" and "target" or "src" and "tgt", or the only two strings, in their order. If a field
    "translation" holds an object, its fields are used. Raises DataError if the first object is ambiguous.
    """
    with closing(LineReader(path)) as lines:
        for line in lines:
            if line.problem is not None:
                yield SkippedPair(line.name, skip_reason(line))
                continue
            record = _parse_object(line.text)
            if record is None:
                yield SkippedPair(
                    line.name, "the line is blank" if not line.text.strip() else "the line is not a JSON object"
                )
                continue
            fields = fields or _find_fields(record, line.name, source, target)
            left, right = (record.get(name) for name in fields)
            if not isinstance(left, str) or not isinstance(right, str):
                yield SkippedPair(line.name, f"there is no text in {fields[0]!r} or in {fields[1]!r}")
            elif not is_unicode(left + right):
                yield SkippedPair(line.name, "there is a lone surrogate, which is half a character")
            else:
                yield make_pair(left, right, line.name)


def _parse_object(text: str) -> Mapping[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict) and isinstance(record.get(_NESTED_FIELD), dict):
        record = record[_NESTED_FIELD]
    return record if isinstance(record, dict) else None


def _find_fields(record: Mapping[str, Any], name: str, source: str | None, target: str | None) -> tuple[str, str]:
    texts = [field for field, value in record.items() if isinstance(value, str)]
    for names in (texts, list(record)):
        found = find_sides(names, source, target)
        if found is not None:
            return names[found[0]], names[found[1]]
    if len(texts) == 2:
        return texts[0], texts[1]
    raise DataError(
        f"it is ambiguous which fields of {name} hold the sentence and its translation",
        expected='the fields "source" and "target", fields named by the two languages, or exactly two texts',
        got="the texts " + (", ".join(map(repr, texts[:8])) or "none"),
        do='name the two fields, the source first: fields=("...", "...") (--fields)',
    )

"""JSON lines: an object a line, with the two texts in two of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.text.line_reader import LineReader
from regard.text.pairs.languages import find_sides
from regard.text.pairs.pair import PairOrSkipped, SkippedPair, make_pair
from regard.text.pairs.parallel_text import skip_reason
from regard.text.tokenizer import is_unicode

_NESTED_FIELD = "translation"


def read_json_lines(
    path: Path, *, fields: tuple[str, str] | None = None, source: str | None = None, target: str | None = None
) -> Iterator[PairOrSkipped]:
    """The pairs of a file, plain or gzip.

    Without ``fields`` they are those of the first object: those that are called by the languages ``source`` and
    ``target``, "source" and "target" or "src" and "tgt", or the only two texts that it holds, in their order. An
    object in a field "translation" stands for the whole one. Raises DataError where the first object leaves open which
    ones they are.
    """
    with closing(LineReader(path)) as lines:
        for line in lines:
            if line.problem is not None:
                yield SkippedPair(line.name, skip_reason(line))
                continue
            record = _parse_object(line.text)
            if record is None:
                yield SkippedPair(
                    line.name, "the line is blank" if not line.text.strip() else "the line is no JSON object"
                )
                continue
            fields = fields or _find_fields(record, line.name, source, target)
            left, right = (record.get(name) for name in fields)
            if not isinstance(left, str) or not isinstance(right, str):
                yield SkippedPair(line.name, f"there is no text in {fields[0]!r} or in {fields[1]!r}")
            elif not is_unicode(left + right):
                yield SkippedPair(line.name, "there is a lone surrogate, half of a character")
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
        f"{name} leaves open which fields are a sentence and its translation",
        expected='"source" and "target", the names of both languages, or two texts and no third',
        got="the texts " + (", ".join(map(repr, texts[:8])) or "none"),
        do="name the two fields, the source first",
    )

"""JSON lines: an object a line, with the two texts in two of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.text.lines import Source
from regard.text.pairs.aligned import reason_of
from regard.text.pairs.languages import sides
from regard.text.pairs.pair import Found, LeftOut, paired
from regard.text.tokenizer import is_unicode

_NESTED = "translation"


def json_lines(
    path: Path, *, fields: tuple[str, str] | None = None, source: str | None = None, target: str | None = None
) -> Iterator[Found]:
    """The pairs of a file, plain or gzip.

    Without ``fields`` they are those of the first object: those that are called by the languages ``source`` and
    ``target``, "source" and "target" or "src" and "tgt", or the only two texts that it holds, in their order. An
    object in a field "translation" stands for the whole one. Raises DataError where the first object leaves open which
    ones they are.
    """
    with closing(Source(path)) as lines:
        for line in lines:
            if line.problem is not None:
                yield LeftOut(line.name, reason_of(line))
                continue
            record = _object(line.text)
            if record is None:
                yield LeftOut(line.name, "the line is blank" if not line.text.strip() else "the line is no JSON object")
                continue
            fields = fields or _fields(record, line.name, source, target)
            left, right = (record.get(name) for name in fields)
            if not isinstance(left, str) or not isinstance(right, str):
                yield LeftOut(line.name, f"there is no text in {fields[0]!r} or in {fields[1]!r}")
            elif not is_unicode(left + right):
                yield LeftOut(line.name, "there is a lone surrogate, half of a character")
            else:
                yield paired(left, right, line.name)


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict) and isinstance(record.get(_NESTED), dict):
        record = record[_NESTED]
    return record if isinstance(record, dict) else None


def _fields(record: Mapping[str, Any], name: str, source: str | None, target: str | None) -> tuple[str, str]:
    texts = [field for field, value in record.items() if isinstance(value, str)]
    for names in (texts, list(record)):
        found = sides(names, source, target)
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

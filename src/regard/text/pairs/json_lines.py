"""Sentence pairs from JSON lines: one object per line, with the two texts in two of its fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.log import log
from regard.text.column_kinds import judge_columns
from regard.text.line_reader import LineReader, read_objects
from regard.text.lookahead import Lookahead
from regard.text.pairs.languages import find_sides
from regard.text.pairs.pair import PairOrSkipped, make_pair
from regard.text.skip_counts import Skipped
from regard.text.tokenizer import is_unicode

_NESTED_FIELD = "translation"


def read_json_lines(
    path: Path, *, fields: tuple[str, str] | None = None, source: str | None = None, target: str | None = None
) -> Iterator[PairOrSkipped]:
    """Read the pairs of a file, plain or gzip.

    Without ``fields`` they are detected in the first object: the fields named by the languages ``source`` and
    ``target``, or "source" and "target" or "src" and "tgt", or the only two that hold texts in the first lines, in
    their order, which is reported as notes. If a field "translation" holds an object, its fields are used. Raises
    DataError if it is ambiguous.
    """
    with closing(LineReader(path)) as reader:
        objects = Lookahead(read_objects(reader), lambda entry: 0 if isinstance(entry, Skipped) else len(entry[0].raw))
        for entry in objects:
            if isinstance(entry, Skipped):
                yield entry
                continue
            line, record = entry[0], _unnest(entry[1])
            if fields is None:
                others = [_unnest(other[1]) for other in objects.peek() if not isinstance(other, Skipped)]
                fields, is_guess = _find_fields([record, *others], line.name, source, target)
                if is_guess:
                    log.info(f"{path}: source from the field {fields[0]!r}, target from {fields[1]!r}")
            left, right = (record.get(name) for name in fields)
            if not isinstance(left, str) or not isinstance(right, str):
                yield Skipped(line.name, f"there is no text in {fields[0]!r} or in {fields[1]!r}")
            elif not is_unicode(left + right):
                yield Skipped(line.name, "there is a lone surrogate, which is half a character")
            else:
                yield make_pair(left, right, line.name)


def _unnest(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object in the field "translation", if there is one."""
    inner = record.get(_NESTED_FIELD)
    return inner if isinstance(inner, dict) else record


def _find_fields(
    records: Sequence[Mapping[str, Any]], name: str, source: str | None, target: str | None
) -> tuple[tuple[str, str], bool]:
    """The fields of source and target, and whether they are a guess by what they hold."""
    fields = [field for field, value in records[0].items() if isinstance(value, str)]
    for names in (fields, list(records[0])):
        found = find_sides(names, source, target)
        if found is not None:
            return (names[found[0]], names[found[1]]), False
    columns = judge_columns([[str(record.get(field) or "") for field in fields] for record in records])
    texts = [field for field, column in zip(fields, columns, strict=True) if column.is_text]
    if len(texts) == 2:
        return (texts[0], texts[1]), True
    kinds = [f"{field!r} ({column.kind.value})" for field, column in zip(fields, columns, strict=True)]
    raise DataError(
        f"it is ambiguous which fields of {name} hold the sentence and its translation",
        expected='the fields "source" and "target", fields named by the two languages, or exactly two of texts',
        got="the fields " + (", ".join(kinds[:8]) or "none"),
        do='name the two fields, the source first: `fields=("...", "...")`',
    )

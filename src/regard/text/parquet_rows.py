"""Rows of a Parquet file, as rows of a table: the names of its columns first, then the cells as texts.

A column of structures, such as ``translation: {en, fr}``, is several: ``translation.en`` and ``translation.fr``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.errors import DataError, MissingPackageError, first_line
from regard.text.line import MAX_LINE_BYTES
from regard.text.table_rows import TableRow
from regard.text.tokenizer import is_unicode

_BATCH_ROWS = 256


def read_parquet(path: Path, name: str) -> Iterator[TableRow]:
    """Read the rows of a file; ``name`` is for messages. Raises DataError for a file that is not Parquet or damaged."""
    parquet, arrow = _import_arrow()
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            empty = file.schema_arrow.empty_table().flatten()
            yield TableRow(list(empty.column_names), f"the names of the columns of {name}", None, 0, is_names=True)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                columns = [column.to_pylist() for column in arrow.Table.from_batches([batch]).flatten().columns]
                for cells in zip(*columns, strict=True):
                    number += 1
                    yield _make_row([_to_text(cell) for cell in cells], f"row {number} of {name}", number)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            f"{name} cannot be read to its end",
            expected="a complete Parquet file",
            got=f"{first_line(error, 200)}, after row {number}",
            do="copy or download the file again",
        ) from error


def _make_row(cells: list[str], place: str, number: int) -> TableRow:
    raw = "\x1f".join(cells).encode("utf-8", "surrogatepass") + b"\n"
    problem = f"the row has more than {MAX_LINE_BYTES:,} bytes" if len(raw) > MAX_LINE_BYTES else None
    if problem is None and not all(map(is_unicode, cells)):
        problem = "the row has a lone surrogate, which is half a character"
    return TableRow(cells if problem is None else [], place, problem, number, raw[:MAX_LINE_BYTES])


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):  # texts without the annotation of a string, or pictures
        return value.decode("utf-8", "ignore") if _is_utf8(value) else ""
    if isinstance(value, (list, dict, bool)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in value


def _import_arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackageError(
            "reading Parquet needs the package pyarrow",
            expected="the package pyarrow",
            got="not installed",
            do="pip install 'regard[parquet]', or save the file as comma-separated values",
        ) from None
    return pyarrow.parquet, pyarrow

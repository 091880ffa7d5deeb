"""Read labelled texts from files of any supported format, chosen by the file name: tables, JSON lines, and folders.

reviews/neg/0.txt  reviews/neg/1.txt  reviews/pos/0.txt ..      one folder per label, here neg and pos, a text per file
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from regard.columns import Columns, LabelFormat
from regard.errors import DataError, OptionError
from regard.list_files import list_folders
from regard.log import log
from regard.text.file_signatures import SUFFIX_ADVICE, find_advice
from regard.text.gzip_io import inner_suffix
from regard.text.labelled.columns import LABEL_NAMES, LabelColumns, describe_label_columns, find_columns
from regard.text.labelled.labelled_text import (
    LabelledOrSkipped,
    LabelledText,
    labels_of_cell,
    labels_of_value,
    make_labelled,
)
from regard.text.line_reader import JSON_SUFFIXES, LineReader, read_objects
from regard.text.lookahead import Lookahead
from regard.text.path_arguments import PathLike, check_exists, to_paths
from regard.text.skip_counts import Skipped, keep_usable
from regard.text.table_column import TABLE_SUFFIXES, TEXT_NAMES, find_name
from regard.text.table_rows import TableRow
from regard.text.text_file import list_texts, read_text_file
from regard.text.tokenizer import is_unicode

FORMATS = "FILE.csv, FILE.tsv, FILE.parquet, FILE.jsonl, FILE.json, or a folder with one folder of texts per label"


def read_labelled(
    paths: PathLike | Sequence[PathLike], where: LabelFormat = LabelFormat()
) -> Iterator[LabelledOrSkipped]:
    """Read the texts of all files in order; columns of a table that are a guess are reported as notes.

    Raises OptionError for an unknown format, DataError for a missing file, and the errors of the formats.
    """
    paths = to_paths(paths)
    for path in paths:
        _check_format(path)
    split = where.labels != "one"
    for path in paths:
        if path.is_dir():
            yield from _read_folder(path, split=split)
        elif inner_suffix(path) in TABLE_SUFFIXES:
            yield from _read_table(path, columns=where.columns, split=split)
        else:
            yield from _read_json_lines(path, columns=where.columns, split=split)


def read_and_report_labelled(paths: Sequence[Path], where: LabelFormat) -> list[LabelledText]:
    """Read all usable texts of the files in order, and report skipped entries as notes.

    Raises DataError if there is no text.
    """
    error = DataError(
        "the data has no usable text",
        expected="texts with labels",
        got=f"0 texts in {', '.join(map(str, paths))}",
        do="check the columns of the data (`columns=...`)",
    )
    return keep_usable(read_labelled(paths, where), error)


def _check_format(path: Path) -> None:
    """Raise DataError for a missing file, OptionError for an unknown format."""
    suffix = inner_suffix(path)
    if not path.is_dir() and suffix not in (*TABLE_SUFFIXES, *JSON_SUFFIXES):
        raise OptionError(
            f"labelled texts cannot be read from {suffix or 'a file without a suffix'}",
            expected=FORMATS,
            got=str(path),
            do=find_advice(path, SUFFIX_ADVICE) or "give the file the suffix of its format",
        )
    check_exists(path, "a file or a folder of labelled texts")


def _read_folder(path: Path, *, split: bool) -> Iterator[LabelledOrSkipped]:
    """Read the texts of a folder, by the names of its files in order; hidden files and folders are ignored.

    Files are UTF-8, plain or gzip, and named .txt or without a suffix. Raises DataError for a folder without folders.
    """
    folders = list_folders(path)
    if not folders:
        raise DataError(
            f"{path} has no folders of texts",
            expected="one folder for each label, with one text per file",
            got=", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "an empty folder",
            do="arrange the files as LABEL/NAME.txt, or give a table: FILE.csv",
        )
    for folder in folders:
        labels = labels_of_cell(folder.name, split=split)
        for file, reason in list_texts(folder):
            if reason is not None:
                yield Skipped(str(file), reason)
                continue
            text, problem = read_text_file(file)
            made = make_labelled(text, labels, str(file), split=split)
            yield made if problem is None else Skipped(str(file), problem)


def _read_table(path: Path, *, columns: Columns | None, split: bool) -> Iterator[LabelledOrSkipped]:
    """Read the texts of a table, plain or gzip: see ``LineReader.rows``.

    ``columns`` are the columns of text and label, by name or by number from 1; None finds them by the header, or by
    what they hold, and reports a guess as notes. ``split`` says whether a cell may hold several labels. Raises
    DataError if the columns are ambiguous.
    """
    found: LabelColumns | None = None
    rows = Lookahead(read_rows(path), TableRow.size)
    for row in rows:
        if row.problem is not None:
            yield Skipped(row.place, row.problem)
            continue
        if not any(cell.strip() for cell in row.cells):
            yield Skipped(row.place, "the line is blank")
            continue
        if found is None:
            found = find_columns(row, rows, columns, str(path))
            if found.is_guess:
                log.info(describe_label_columns(found, row.cells, str(path)))
            if found.is_heading:
                continue
        places = found.text, found.label
        if len(row.cells) <= max(places):
            yield Skipped(row.place, f"there are fewer than {max(places) + 1} columns")
            continue
        text, label = (row.cells[place] for place in places)
        yield make_labelled(text, labels_of_cell(label, split=split), row.place, split=split)


def read_rows(path: Path) -> Iterator[TableRow]:
    """Read the rows of a table, plain or gzip."""
    with closing(LineReader(path)) as lines:
        yield from lines.rows()


def _read_json_lines(path: Path, *, columns: Columns | None, split: bool) -> Iterator[LabelledOrSkipped]:
    """Read the texts of a file, plain or gzip.

    ``columns`` are the fields of text and label; None finds them by name in the first object. A label is a string, a
    number, true or false; with ``split`` it may be a list of these, or several in a string. Raises DataError if the
    first object lacks the fields.
    """
    fields: tuple[str, str] | None = None
    with closing(LineReader(path)) as lines:
        for entry in read_objects(lines):
            if isinstance(entry, Skipped):
                yield entry
                continue
            line, record = entry
            fields = fields or _find_fields(record, columns, line.name)
            text, label = (record.get(name) for name in fields)
            if not isinstance(text, str):
                yield Skipped(line.name, f"there is no text in {fields[0]!r}")
            elif not is_unicode(text + json.dumps(label, ensure_ascii=False)):
                yield Skipped(line.name, "there is a lone surrogate, which is half a character")
            else:
                yield make_labelled(text, labels_of_value(label, split=split), line.name, split=split)


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

"""Read labelled texts from files of any supported format, chosen by the file name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.columns import LabelFormat
from regard.errors import DataError, OptionError
from regard.text.gzip_io import inner_suffix
from regard.text.labelled.folders import read_folder
from regard.text.labelled.json_lines import read_json_lines
from regard.text.labelled.labelled_text import LabelledOrSkipped, LabelledText
from regard.text.labelled.tables import read_table
from regard.text.path_arguments import PathLike, to_paths
from regard.text.skip_counts import keep_usable
from regard.text.table_column import TABLE_SUFFIXES

JSON_SUFFIXES = (".jsonl", ".ndjson")
FORMATS = "FILE.csv, FILE.tsv, FILE.parquet, FILE.jsonl, or a folder with one folder of texts per label"
_UNSUPPORTED_FORMATS = {
    (".xls", ".xlsx", ".ods"): "save it as comma-separated values, FILE.csv",
    (".json",): "write one object per line, FILE.jsonl",
    (".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"): "unpack it, or compress a table with gzip instead",
}
"""Unsupported formats, and what to do with each."""


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
            yield from read_folder(path, split=split)
        elif inner_suffix(path) in TABLE_SUFFIXES:
            yield from read_table(path, columns=where.columns, split=split)
        else:
            yield from read_json_lines(path, columns=where.columns, split=split)


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
    do = next((do for suffixes, do in _UNSUPPORTED_FORMATS.items() if suffix in suffixes), None)
    known = suffix in (*TABLE_SUFFIXES, *JSON_SUFFIXES)
    if not path.is_dir() and not known:
        do = do or "give the file the suffix of its format"
        raise OptionError(
            f"labelled texts cannot be read from {suffix or 'a file without a suffix'}",
            expected=FORMATS,
            got=str(path),
            do=do,
        )
    if not path.exists():
        raise DataError(
            f"cannot read {path}",
            expected="a file or a folder of labelled texts",
            got="No such file or directory",
            do="check the path",
        )

"""Read labelled files from a folder or a table, recognised by its name and content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from regard.arguments import explain_arguments
from regard.columns import Columns
from regard.errors import DataError, OptionError
from regard.list_files import list_folders
from regard.log import log
from regard.media.folders import has_files, read_folder
from regard.media.labelled_file import LabelledFile, LabelledOrSkipped, MediaFile
from regard.media.medium import Medium
from regard.media.tables import is_table, names_files, read_table
from regard.text.line import Line
from regard.text.skip_counts import Skipped, keep_usable

Entry = TypeVar("Entry", bound=MediaFile)


@explain_arguments
def describe_source(path: Path, kind: Medium) -> str | None:
    """The files that a source holds, in words; None if it does not look like files of this medium.

    Reads the names of files, and the first lines of a table.
    """
    for own in kind.formats:
        described = own.describe(path)
        if described is not None:
            return described
    if path.is_dir():
        if not has_files(path, kind):
            return None
        folders = list_folders(path)
        return (
            f"{kind.several} in the folders of {path}, one for each label" if folders else f"{kind.several} in {path}"
        )
    if path.exists() and is_table(path) and names_files(path, kind):
        return f"paths of {kind.several} and labels in {path}"
    return None


@explain_arguments
def check_source(path: Path, kind: Medium, *, formats: str, values: str = "labels") -> None:
    """Raise DataError for a missing source, OptionError for a file that is no table.

    ``formats`` are the readable formats, in words, and ``values`` the information about each file.
    """
    if not path.exists():
        raise DataError(
            f"cannot read {path}",
            expected=f"{kind.several} with {values}",
            got="No such file or directory",
            do="check the path" + "".join(own.hint for own in kind.formats if values == "labels"),
        )
    if not path.is_dir() and not is_table(path):
        raise OptionError(
            f"{kind.several} with {values} cannot be read from {path.suffix or 'a file without a suffix'}",
            expected=formats,
            got=str(path),
            do="unpack an archive, or give the file the suffix of its format",
        )


@explain_arguments
def read_file_of_line(line: Line, read: Callable[[Path, str], Any], kind: Medium) -> tuple[str, Any]:
    """The path that a line holds, and what ``read`` makes of the file, called by its path in messages, or its error."""
    if line.problem is not None:
        return line.name, line.problem
    path = line.text.strip()
    if not path or "\0" in path:
        what = f"{line.name} has no path"
        return path, DataError(what, expected=f"the path of a {kind.one}", got="none", do="leave it out")
    try:
        return path, read(Path(path), path)
    except DataError as error:
        return path, error


@explain_arguments
def read_labelled(paths: Sequence[Path], kind: Medium, columns: Columns | None = None) -> Iterator[LabelledOrSkipped]:
    """Read the labelled files of all sources in order; ``columns`` are the columns of path and label in tables.

    Raises OptionError for an unknown format, DataError for a missing source, and the errors of the formats.
    """
    folder = f"a folder with one folder of {kind.several} per label"
    tables = "FILE.csv, FILE.tsv or FILE.jsonl with the columns path and label"
    *others, last = folder, tables, *(own.words for own in kind.formats)
    formats = f"{'; '.join(others)}; or {last}"
    owns = [next((own for own in kind.formats if own.describe(path) is not None), None) for path in paths]
    for path, own in zip(paths, owns, strict=True):
        if own is None:
            check_source(path, kind, formats=formats)
    for path, own in zip(paths, owns, strict=True):
        if own is not None:
            yield from own.read(path)
        else:
            yield from read_folder(path, kind) if path.is_dir() else read_table(path, kind, columns=columns)


@explain_arguments
def read_and_report_labelled(paths: Sequence[Path], kind: Medium, columns: Columns | None) -> list[LabelledFile]:
    """Read all labelled files in order, and report what was recognised and skipped as notes.

    Raises DataError if there is no file, and as ``read_labelled``.
    """
    for path in paths:
        recognised = describe_source(path, kind)
        if recognised is not None:
            log.info(f"recognised: {recognised}")
    return read_and_report(read_labelled(paths, kind, columns), paths, kind)


@explain_arguments
def read_and_report(
    read: Iterable[Entry | Skipped], paths: Sequence[Path], kind: Medium, *, values: str = "labels"
) -> list[Entry]:
    """The usable files among what was read from ``paths``; what was skipped is reported as notes.

    ``values`` is the information about each file, in words.

    Raises DataError if there is none.
    """
    error = DataError(
        f"the data has no {kind.several}",
        expected=f"{kind.several} with {values}",
        got=f"0 {kind.several} in {', '.join(map(str, paths))}",
        do="check the path, or the columns of the table (`columns=...`)",
    )
    return keep_usable(read, error)

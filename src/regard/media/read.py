"""Read labelled files from a folder or a table, recognised by its name and content.

flowers/daisy/1.jpg  flowers/daisy/old/2.png  flowers/rose/1.jpg ..      one folder per label, here daisy and rose
flowers/train/daisy/1.jpg  flowers/test/daisy/2.jpg ..                   two sets: flowers/train and flowers/test
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from regard.arguments import explain_arguments
from regard.columns import Columns
from regard.errors import DataError, OptionError
from regard.list_files import list_entries, list_folders, walk, why_no_file
from regard.log import log
from regard.media.labelled_file import LabelledFile, LabelledOrSkipped, MediaFile
from regard.media.medium import Medium
from regard.media.tables import is_table, names_files, read_table
from regard.text.line import Line
from regard.text.path_arguments import check_exists
from regard.text.skip_counts import Skipped, keep_usable

Entry = TypeVar("Entry", bound=MediaFile)
SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev"})
"""Names of folders that are parts of a data set, and not labels."""
_TRIED = 50


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
        return f"{kind.plural} in the folders of {path}, one for each label" if folders else f"{kind.plural} in {path}"
    if path.exists() and is_table(path) and names_files(path, kind):
        return f"paths of {kind.plural} and labels in {path}"
    return None


@explain_arguments
def check_source(path: Path, kind: Medium, *, formats: str, values: str = "labels") -> None:
    """Raise DataError for a missing source, OptionError for a file that is no table.

    ``formats`` are the readable formats, in words, and ``values`` the information about each file.
    """
    hints = "".join(own.hint for own in kind.formats if values == "labels")
    check_exists(path, f"{kind.plural} with {values}", do=f"check the path{hints}")
    if not path.is_dir() and not is_table(path):
        raise OptionError(
            f"{kind.plural} with {values} cannot be read from {path.suffix or 'a file without a suffix'}",
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
        return path, DataError(what, expected=f"the path of a {kind.singular}", got="none", do="leave it out")
    try:
        return path, read(Path(path), path)
    except DataError as error:
        return path, error


@explain_arguments
def read_labelled(paths: Sequence[Path], kind: Medium, columns: Columns | None = None) -> Iterator[LabelledOrSkipped]:
    """Read the labelled files of all sources in order; ``columns`` are the columns of path and label in tables.

    Raises OptionError for an unknown format, DataError for a missing source, and the errors of the formats.
    """
    folder = f"a folder with one folder of {kind.plural} per label"
    tables = "FILE.csv, FILE.tsv, FILE.jsonl or FILE.json with the columns path and label"
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
            yield from _read_folder(path, kind) if path.is_dir() else read_table(path, kind, columns=columns)


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
        f"the data has no {kind.plural}",
        expected=f"{kind.plural} with {values}",
        got=f"0 {kind.plural} in {', '.join(map(str, paths))}",
        do="check the path, or the columns of the table (`columns=...`)",
    )
    return keep_usable(read, error)


def has_files(folder: Path, kind: Medium) -> bool:
    """Whether one of the first files of the folder's folders is named like one of this kind.

    So is a folder without folders, whose files lack labels: ``read_folder`` says how to give them.
    """
    folders = list_folders(folder)
    if not folders:
        return any(map(kind.is_name, islice(walk(folder), _TRIED)))
    return any(
        kind.is_name(file)
        for inner in folders
        for file in islice((path for path in walk(inner) if path.is_file()), _TRIED)
    )


def _read_folder(folder: Path, kind: Medium) -> Iterator[LabelledOrSkipped]:
    """Read the files of a folder, by their names in order; hidden files and folders are ignored.

    Raises DataError for a folder without folders, for one whose folders are parts of a data set, and for a label
    without files of this kind.
    """
    folders = list_folders(folder)
    if not folders:
        raise DataError(
            f"{folder} has no folders of {kind.plural}",
            expected="one folder for each label",
            got=", ".join(sorted(entry.name for entry in folder.iterdir())[:5]) or "an empty folder",
            do=f"arrange the files as LABEL/{kind.example}, or give a table of paths and labels: FILE.csv",
        )
    parts = [inner.name for inner in folders if inner.name.lower() in SPLITS]
    if len(parts) == len(folders):
        train = next((name for name in parts if name.lower().startswith("train")), parts[0])
        other = next((name for name in parts if name != train), None)
        raise DataError(
            f"the folders in {folder} are parts of a data set, and not labels",
            expected="one folder for each label",
            got=", ".join(parts),
            do=f"`data={str(folder / train)!r}`"
            + (f", and in training `validation={str(folder / other)!r}`" if other else ""),
        )
    for inner in folders:
        yield from _read_label(inner, kind)


def _read_label(folder: Path, kind: Medium) -> Iterator[LabelledOrSkipped]:
    found = False
    for file in list_entries(folder):
        if not file.is_file():
            yield Skipped(str(file), why_no_file(file))
        elif kind.is_name(file):
            found = True
            yield LabelledFile(file, folder.name, str(file))
        else:
            yield Skipped(str(file), f"a file is not named like a {kind.singular}")
    if not found:
        raise DataError(
            f"{folder} has no {kind.plural}",
            expected=f"{kind.plural} of the label, such as {kind.example}",
            got="an empty folder" if not any(folder.iterdir()) else "other files",
            do=f"add {kind.plural}, or remove the folder",
        )

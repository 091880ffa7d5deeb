"""Read labelled files from a folder or a table, recognised by its name and content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from regard.arguments import explain_arguments
from regard.columns import Columns
from regard.errors import DataError, OptionError
from regard.list_files import list_folders
from regard.media.folders import has_files, read_folder
from regard.media.labelled_file import LabelledOrSkipped, MediaFile, SkippedFile
from regard.media.medium import Medium
from regard.media.tables import is_table, names_files, read_table
from regard.text.skip_counts import SkipCounts

Entry = TypeVar("Entry", bound=MediaFile)


@explain_arguments
def describe_source(path: Path, kind: Medium, *, by_header: bool = False) -> str | None:
    """The kind of files of a folder or a table, in words; None if it does not look like files of this kind.

    Reads the names of files, and the first lines of a table; ``by_header`` is that of ``names_files``.
    """
    if path.is_dir():
        if not has_files(path, kind):
            return None
        folders = list_folders(path)
        return (
            f"{kind.several} in the folders of {path}, one for each label" if folders else f"{kind.several} in {path}"
        )
    if path.exists() and is_table(path) and names_files(path, kind, by_header=by_header):
        return f"paths of {kind.several} and labels in {path}"
    return None


@explain_arguments
def check_source(path: Path, kind: Medium, *, formats: str, values: str = "labels", hint: str = "") -> None:
    """Raise DataError for a missing source, OptionError for a file that is no table.

    ``formats`` are what can be read, in words, ``values`` what is known about each file, and ``hint`` is added to what
    to do about a missing source.
    """
    if not path.exists():
        raise DataError(
            f"cannot read {path}",
            expected=f"{kind.several} with {values}",
            got="No such file or directory",
            do=f"check the path{hint}",
        )
    if not path.is_dir() and not is_table(path):
        raise OptionError(
            f"{kind.several} with {values} cannot be read from {path.suffix or 'a file without a suffix'}",
            expected=formats,
            got=str(path),
            do="unpack an archive, or give the file the suffix of its format",
        )


@explain_arguments
def read_source(path: Path, kind: Medium, columns: Columns | None = None) -> Iterator[LabelledOrSkipped]:
    """Read a folder or a table; ``columns`` are those of path and label. Raises DataError as the formats do."""
    return read_folder(path, kind) if path.is_dir() else read_table(path, kind, columns=columns)


@explain_arguments
def read_and_report(
    read: Iterable[Entry | SkippedFile],
    paths: Sequence[Path],
    kind: Medium,
    say: Callable[[str], None],
    *,
    values: str = "labels",
) -> list[Entry]:
    """The usable files among what was read from ``paths``; what was skipped is reported to ``say``.

    ``values`` is what is known about each file, in words.

    Raises DataError if there is none.
    """
    skips, files = SkipCounts(), list[Entry]()
    for one in read:
        if isinstance(one, SkippedFile):
            skips.add(one.place, one.reason)
        else:
            files.append(one)
    for sentence in skips.sentences():
        say(sentence)
    if not files:
        raise DataError(
            f"the data has no {kind.several}",
            expected=f"{kind.several} with {values}",
            got=f"0 {kind.several} in {', '.join(map(str, paths))}",
            do="check the path, or the columns of the table (--columns)",
        )
    return files

"""Labelled files from a folder: one folder per label.

flowers/daisy/1.jpg  flowers/daisy/old/2.png  flowers/rose/1.jpg ..      the labels are daisy and rose
flowers/train/daisy/1.jpg  flowers/test/daisy/2.jpg ..                   two sets: flowers/train and flowers/test
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from regard.errors import DataError
from regard.list_files import list_entries, list_folders, walk, why_no_file
from regard.media.labelled_file import LabelledFile, LabelledOrSkipped
from regard.media.medium import Medium
from regard.text.skip_counts import Skipped

SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev"})
"""Names of folders that are parts of a data set, and not labels."""
_TRIED = 50


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
        for file in islice((one for one in walk(inner) if one.is_file()), _TRIED)
    )


def read_folder(folder: Path, kind: Medium) -> Iterator[LabelledOrSkipped]:
    """Read the files of a folder, by their names in order; hidden files and folders are ignored.

    Raises DataError for a folder without folders, for one whose folders are parts of a data set, and for a label
    without files of this kind.
    """
    folders = list_folders(folder)
    if not folders:
        raise DataError(
            f"{folder} has no folders of {kind.several}",
            expected="one folder for each label",
            got=", ".join(sorted(one.name for one in folder.iterdir())[:5]) or "an empty folder",
            do=f"arrange the files as LABEL/{kind.example}, or give a table of paths and labels: FILE.csv",
        )
    parts = [one.name for one in folders if one.name.lower() in SPLITS]
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
    for one in folders:
        yield from _read_label(one, kind)


def _read_label(folder: Path, kind: Medium) -> Iterator[LabelledOrSkipped]:
    found = False
    for file in list_entries(folder):
        if not file.is_file():
            yield Skipped(str(file), why_no_file(file))
        elif kind.is_name(file):
            found = True
            yield LabelledFile(file, folder.name, str(file))
        else:
            yield Skipped(str(file), f"a file is not named like a {kind.one}")
    if not found:
        raise DataError(
            f"{folder} has no {kind.several}",
            expected=f"{kind.several} of the label, such as {kind.example}",
            got="an empty folder" if not any(folder.iterdir()) else "other files",
            do=f"add {kind.several}, or remove the folder",
        )

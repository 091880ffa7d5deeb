"""Labelled pictures from a folder: one folder per label.

flowers/daisy/1.jpg  flowers/daisy/old/2.png  flowers/rose/1.jpg ..      the labels are daisy and rose
flowers/train/daisy/1.jpg  flowers/test/daisy/2.jpg ..                   two sets: flowers/train and flowers/test
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from regard.errors import DataError
from regard.vision.labelled.labelled_picture import LabelledOrSkipped, LabelledPicture, SkippedPicture
from regard.vision.picture_file import is_picture_name

SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev"})
"""Names of folders that are parts of a data set, and not labels."""
_TRIED = 50


def has_pictures(folder: Path) -> bool:
    """Whether one of the first files of the folder's folders is named like a picture."""
    return any(
        is_picture_name(file)
        for inner in _folders(folder)
        for file in islice((one for one in inner.rglob("*") if one.is_file()), _TRIED)
    )


def read_folder(folder: Path) -> Iterator[LabelledOrSkipped]:
    """Read the pictures of a folder, by the names of its files in order; hidden files and folders are ignored.

    Raises DataError for a folder without folders, for one whose folders are parts of a data set, and for a label
    without pictures.
    """
    folders = _folders(folder)
    if not folders:
        raise DataError(
            f"{folder} has no folders of pictures",
            expected="one folder for each label",
            got=", ".join(sorted(one.name for one in folder.iterdir())[:5]) or "an empty folder",
            do="arrange the files as LABEL/NAME.jpg, or give a table of paths and labels: FILE.csv",
        )
    parts = [one.name for one in folders if one.name.lower() in SPLITS]
    if len(parts) == len(folders):
        train = next((name for name in parts if name.lower().startswith("train")), parts[0])
        other = next((name for name in parts if name != train), None)
        raise DataError(
            f"the folders in {folder} are parts of a data set, and not labels",
            expected="one folder for each label",
            got=", ".join(parts),
            do=f"--data {folder / train}" + (f" --valid {folder / other}" if other else ""),
        )
    for one in folders:
        yield from _read_label(one)


def _read_label(folder: Path) -> Iterator[LabelledOrSkipped]:
    pictures = 0
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        if is_picture_name(file):
            pictures += 1
            yield LabelledPicture(file, folder.name, str(file))
        else:
            yield SkippedPicture(str(file), "a file is not named like a picture")
    if not pictures:
        raise DataError(
            f"{folder} has no pictures",
            expected="pictures of the label, such as NAME.jpg or NAME.png",
            got="an empty folder" if not any(folder.iterdir()) else "other files",
            do="add pictures, or remove the folder",
        )


def _folders(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))

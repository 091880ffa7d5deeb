"""Read labelled pictures from any supported source, recognised by its name and content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from regard.errors import DataError, OptionError
from regard.text.labelled.columns import Columns
from regard.text.skip_counts import SkipCounts
from regard.vision.labelled.folders import has_pictures, read_folder
from regard.vision.labelled.idx_files import find_images, read_idx
from regard.vision.labelled.labelled_picture import LabelledOrSkipped, LabelledPicture
from regard.vision.labelled.packaged_sets import PACKAGED, read_packaged
from regard.vision.labelled.tables import is_table, names_pictures, read_table

FORMATS = (
    "a folder with one folder of pictures per label; FILE.csv, FILE.tsv or FILE.jsonl with the columns path and label; "
    f"IDX files, as of MNIST; or {', '.join(PACKAGED)}"
)


def describe_pictures(path: Path) -> str | None:
    """What kind of pictures a source holds, in words; None if it does not look like pictures.

    Reads the names of files, and the first line of a table.
    """
    if str(path) in PACKAGED and not path.exists():
        return f"the packaged pictures {path}"
    if not path.exists():
        return None
    images = find_images(path)
    if images is not None:
        return f"the pictures of the IDX file {images}"
    if path.is_dir():
        return f"pictures in the folders of {path}, one for each label" if has_pictures(path) else None
    if is_table(path) and names_pictures(path):
        return f"paths of pictures and labels in {path}"
    return None


def are_pictures(paths: Sequence[Path]) -> bool:
    """Whether sources hold pictures, by the first of them. Missing sources do not."""
    return bool(paths) and describe_pictures(paths[0]) is not None


def read_labelled_pictures(paths: Sequence[Path], columns: Columns | None = None) -> Iterator[LabelledOrSkipped]:
    """Read the pictures of all sources in order; ``columns`` are those of path and label in tables.

    Raises OptionError for an unknown format, DataError for a missing source, and the errors of the formats.
    """
    for path in paths:
        _check(path)
    for path in paths:
        images = find_images(path)
        if str(path) in PACKAGED and not path.exists():
            yield from read_packaged(str(path))
        elif images is not None:
            yield from read_idx(images)
        elif path.is_dir():
            yield from read_folder(path)
        else:
            yield from read_table(path, columns=columns)


def read_and_report_labelled_pictures(
    paths: Sequence[Path], columns: Columns | None, say: Callable[[str], None]
) -> list[LabelledPicture]:
    """Read all labelled pictures in order, and report what was recognised and skipped to ``say``.

    Raises DataError if there is no picture.
    """
    for path in paths:
        recognised = describe_pictures(path)
        if recognised is not None:
            say(f"recognised: {recognised}")
    skips, pictures = SkipCounts(), []
    for one in read_labelled_pictures(paths, columns):
        if isinstance(one, LabelledPicture):
            pictures.append(one)
        else:
            skips.add(one.place, one.reason)
    for sentence in skips.sentences():
        say(sentence)
    if not pictures:
        raise DataError(
            "the data has no pictures",
            expected="pictures with labels",
            got=f"0 pictures in {', '.join(map(str, paths))}",
            do="check the path, or the columns of the table (--columns)",
        )
    return pictures


def _check(path: Path) -> None:
    """Raise DataError for a missing source, OptionError for an unknown format."""
    if str(path) in PACKAGED and not path.exists():
        return
    if not path.exists():
        raise DataError(
            f"cannot read {path}",
            expected="pictures with labels",
            got="No such file or directory",
            do=f"check the path; the packaged sets are {', '.join(PACKAGED)}",
        )
    if not path.is_dir() and find_images(path) is None and not is_table(path):
        raise OptionError(
            f"labelled pictures cannot be read from {path.suffix or 'a file without a suffix'}",
            expected=FORMATS,
            got=str(path),
            do="unpack an archive, or give the file the suffix of its format",
        )

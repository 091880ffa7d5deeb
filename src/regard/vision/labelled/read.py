"""Read labelled pictures from any supported source, recognised by its name and content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from regard.columns import Columns
from regard.media import LabelledFile, LabelledOrSkipped, check_source, describe_source, read_and_report, read_source
from regard.vision.labelled.idx_files import find_images, read_idx
from regard.vision.labelled.packaged_sets import PACKAGED, read_packaged
from regard.vision.picture_file import PICTURES

FORMATS = (
    "a folder with one folder of pictures per label; FILE.csv, FILE.tsv or FILE.jsonl with the columns path and label; "
    f"IDX files, as of MNIST; or {', '.join(PACKAGED)}"
)


def describe_pictures(path: Path) -> str | None:
    """The kind of pictures of a source, in words; None if it does not look like pictures.

    Reads the names of files, and the first line of a table.
    """
    if str(path) in PACKAGED and not path.exists():
        return f"the packaged pictures {path}"
    if not path.exists():
        return None
    images = find_images(path)
    if images is not None:
        return f"the pictures of the IDX file {images}"
    return describe_source(path, PICTURES, by_header=True)


def are_pictures(paths: Sequence[Path]) -> bool:
    """Whether sources hold pictures, by the first of them. Missing sources do not."""
    return bool(paths) and describe_pictures(paths[0]) is not None


def read_labelled_pictures(paths: Sequence[Path], columns: Columns | None = None) -> Iterator[LabelledOrSkipped]:
    """Read the pictures of all sources in order; ``columns`` are those of path and label in tables.

    Raises OptionError for an unknown format, DataError for a missing source, and the errors of the formats.
    """
    for path in paths:
        if not _is_own_format(path):
            hint = f"; the packaged sets are {', '.join(PACKAGED)}"
            check_source(path, PICTURES, formats=FORMATS, hint=hint)
    for path in paths:
        images = find_images(path)
        if str(path) in PACKAGED and not path.exists():
            yield from read_packaged(str(path))
        elif images is not None:
            yield from read_idx(images)
        else:
            yield from read_source(path, PICTURES, columns)


def read_and_report_labelled_pictures(
    paths: Sequence[Path], columns: Columns | None, say: Callable[[str], None]
) -> list[LabelledFile]:
    """Read all labelled pictures in order, and report what was recognised and skipped to ``say``.

    Raises DataError if there is no picture.
    """
    for path in paths:
        recognised = describe_pictures(path)
        if recognised is not None:
            say(f"recognised: {recognised}")
    return read_and_report(read_labelled_pictures(paths, columns), paths, PICTURES, say)


def _is_own_format(path: Path) -> bool:
    """Whether a source is a packaged set or an IDX file."""
    return (str(path) in PACKAGED and not path.exists()) or find_images(path) is not None

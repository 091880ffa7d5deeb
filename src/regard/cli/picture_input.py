"""Picture input of a verb: paths from arguments, a file or standard input; a folder is all pictures in it.

A verb reads pictures if its model does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from regard.cli.progress import line_progress
from regard.cli.text_input import open_texts
from regard.errors import DataError, RegardError

if TYPE_CHECKING:
    import numpy as np

    from regard.text.line_reader import Line, LineReader
    from regard.vision import ImageProcessor

_CHUNK = 64
"""Pictures that are decoded at a time."""


@final
@dataclass(frozen=True)
class PictureInput:
    """A picture of the input: its path, and its pixels (channels, height, width) or the problem with it."""

    name: str
    pixels: np.ndarray | None
    problem: DataError | None = None


def has_picture_model(model: str) -> bool:
    """Whether ``--model`` reads pictures. A model that cannot be found does not: the verb says why."""
    if not _may_be_folder(model):
        return False
    from regard.models.load import is_image_model

    try:
        return is_image_model(model)
    except RegardError:
        return False


def has_clip_model(model: str) -> bool:
    """Whether ``--model`` is a CLIP, which reads texts and pictures. A model that cannot be found is none."""
    if not _may_be_folder(model):
        return False
    from regard.models.load import is_clip

    try:
        return is_clip(model)
    except RegardError:
        return False


def name_pictures(paths: list[str], data: str | None) -> bool:
    """Whether the input of a model that reads texts and pictures is pictures: files or folders of them that exist."""
    from regard.vision.picture_file import is_picture_name

    if not paths:
        return data is not None and Path(data).is_dir() and any(map(is_picture_name, Path(data).rglob("*")))
    return all(os.path.isdir(one) or (os.path.isfile(one) and is_picture_name(Path(one))) for one in paths)  # noqa: PTH112, PTH113 (return False, without an error, for an invalid path)


def _may_be_folder(model: str) -> bool:
    return Path(model).expanduser().is_dir() or "/" in model


def expand_folders(paths: list[str]) -> list[str]:
    """Replace folders by the pictures in them, by their names in order. Raises DataError for one without pictures."""
    from regard.vision.picture_file import is_picture_name

    expanded: list[str] = []
    for one in paths:
        if not os.path.isdir(one):  # noqa: PTH112 (returns False, without an error, for an invalid path)
            expanded.append(one)
            continue
        found = sorted(str(file) for file in Path(one).rglob("*") if file.is_file() and is_picture_name(file))
        if not found:
            raise DataError(
                f"{one} has no pictures", expected="pictures, such as NAME.jpg", got="none", do="check the folder"
            )
        expanded += found
    return expanded


@contextmanager
def open_pictures(paths: list[str], data: str | None, field: str | None) -> Iterator[LineReader | list[Line]]:
    """Open the lines of paths. ``data`` may be a folder. Raises as ``open_texts``."""
    if not paths and data is not None and Path(data).is_dir():
        paths, data = [data], None
    with open_texts(expand_folders(paths), data, field) as lines:
        yield lines


def read_pictures(lines: LineReader | list[Line], processor: ImageProcessor) -> Iterator[list[PictureInput]]:
    """Read the pictures chunk by chunk, as their paths arrive, in threads, with a progress bar."""
    from regard.text.line_reader import chunk_lines

    done = 0
    with ThreadPoolExecutor(thread_name_prefix="decode") as pool, line_progress(lines) as advance:
        for some in chunk_lines(lines, _CHUNK):
            yield list(pool.map(lambda line: _read(line, processor), some))
            done += len(some)
            advance(done)


def _read(line: Line, processor: ImageProcessor) -> PictureInput:
    if line.problem is not None:
        return PictureInput(line.name, None, line.problem)
    path = line.text.strip()
    if not path or "\0" in path:
        error = DataError(f"{line.name} has no path", expected="the path of a picture", got="none", do="leave it out")
        return PictureInput(path, None, error)
    try:
        return PictureInput(path, processor.to_pixels(Path(path), name=path))
    except DataError as error:
        return PictureInput(path, None, error)

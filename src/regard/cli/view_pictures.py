"""``regard view`` with pictures: the attention of an image encoder over patches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.media_input import expand_folders, has_picture_model
from regard.cli.progress import count_progress
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from regard.view.picture_reading import PictureReading

MAX_PICTURES = 12
"""Maximum number of pictures: a page holds every head of each, 7 MB for a ViT base."""


def names_pictures(arguments: list[str]) -> bool:
    """Whether all arguments are files with the name of a picture, or folders without a model that hold pictures."""
    from regard.vision.picture_file import is_picture_name

    def is_picture(text: str) -> bool:
        try:
            return is_picture_name(Path(text)) and Path(text).is_file()
        except (OSError, ValueError):  # a text that is no valid path
            return False

    return bool(arguments) and all(map(is_picture, arguments))


def read_pictures(model: str | None, arguments: list[str], label: str | None) -> list[PictureReading]:
    """Load the model, and capture its attention over each picture; a folder is all pictures in it.

    Raises OptionError for a model that reads no pictures, too many pictures or none.
    """
    from regard.vision.picture_file import PICTURES

    paths = expand_folders(arguments, PICTURES)
    if not paths:
        raise DataError(
            "there is no picture to view", expected="the path of a picture", got="none", do="regard view cat.png .."
        )
    if model is None or not has_picture_model(model):
        raise _no_picture_model_error(model, paths[0])
    if len(paths) > MAX_PICTURES:
        raise OptionError(
            "there are too many pictures to view",
            expected=f"at most {MAX_PICTURES}",
            got=f"{len(paths):,}",
            do="view some of them; or embed them all: regard embed",
        )
    from regard.models.load import load_image_encoder
    from regard.view.read_picture import read_picture_attention

    loaded = load_image_encoder(model)
    readings: list[PictureReading] = []
    with count_progress(len(paths), "pictures") as advance:
        for path in paths:
            readings.append(read_picture_attention(loaded, Path(path), label=label, name=path))
            advance(len(readings))
    return readings


def _no_picture_model_error(model: str | None, path: str) -> Exception:
    if model is not None:
        from regard.models.load import is_image_model

        is_image_model(model)  # raises CheckpointError if there is no such model
    return OptionError(
        f"{path} is a picture, and the model reads texts" if model else f"{path} is a picture, and --model is missing",
        expected="a model that reads pictures, such as a ViT, a DeiT or a Swin",
        got=f"--model {model}" if model else "no --model; the default, minilm, reads texts",
        do=f"regard view {path} --model vit/",
    )

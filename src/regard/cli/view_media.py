"""``regard view`` with pictures and sounds: the attention of a model over patches, or over a spectrogram."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.loaded_model import open_model
from regard.cli.media_input import expand_folders
from regard.cli.progress import count_progress
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from regard.media import Medium
    from regard.models.kinds import ModelKind
    from regard.models.model_folder import ModelFolder
    from regard.view.picture_reading import PictureReading

MAX_FILES = 12
"""Maximum number of pictures or sounds: a page holds every head of each, 7 MB for a ViT base."""


def find_named_kind(arguments: list[str]) -> Medium | None:
    """Pictures or sounds, if all arguments are files with names of this kind; else None."""
    from regard.audio.sound_file import SOUNDS
    from regard.vision.picture_file import PICTURES

    def is_file(text: str, kind: Medium) -> bool:
        try:
            return kind.is_name(Path(text)) and Path(text).is_file()
        except (OSError, ValueError):  # a text that is no valid path
            return False

    kinds = (
        kind for kind in (PICTURES, SOUNDS) if arguments and all(is_file(argument, kind) for argument in arguments)
    )
    return next(kinds, None)


def read_media(
    medium: Medium, arguments: list[str], model: str | ModelFolder | None, labels: list[str]
) -> list[PictureReading]:
    """Capture attention over files; a folder is all in it.

    ``labels`` are the texts of a CLIP, or a label of another model. Raises OptionError for a model that does not read
    the medium, and for too many files or none.
    """
    if labels and medium.one != "picture":
        raise OptionError(
            "--label belongs to pictures", expected="a picture", got=medium.several, do="leave --label out"
        )
    opened, kind, paths = _check_files(model, arguments, medium)
    read = _make_reader(opened, kind, labels)
    readings: list[PictureReading] = []
    with count_progress(len(paths), medium.several) as advance:
        for path in paths:
            readings.append(read(Path(path), name=path))
            advance(len(readings))
    return readings


def _make_reader(model: str | ModelFolder, kind: ModelKind, labels: list[str]) -> Callable[..., PictureReading]:
    """Load the model, and return the function that captures its attention.

    Raises OptionError for several labels of a model that is no CLIP.
    """
    from regard.models import Clip, ImageEncoder
    from regard.models.media_encoder import MediaEncoder
    from regard.vision.picture_file import PICTURES

    if labels and kind.texts:
        from regard.view.read_clip import read_clip_attention

        return partial(read_clip_attention, Clip.load(model), texts=labels)
    if len(labels) > 1:
        raise OptionError(
            f"{model} takes one --label, beside the five most probable ones",
            expected="one label, or a CLIP, which takes any texts",
            got=f"{len(labels)} of --label",
            do="leave out all but one",
        )
    if kind.files is PICTURES:
        from regard.view.read_picture import read_picture_attention

        return partial(read_picture_attention, ImageEncoder.load(model), label=labels[0] if labels else None)
    from regard.view.read_file import read_file_attention

    return partial(read_file_attention, MediaEncoder.load(model))


def _check_files(
    model: str | ModelFolder | None, arguments: list[str], medium: Medium
) -> tuple[str | ModelFolder, ModelKind, list[str]]:
    """The model, its kind, and the paths of the files. Raises OptionError or DataError for what cannot be shown."""
    paths = expand_folders(arguments, medium)
    if not paths:
        raise DataError(
            f"there is no {medium.one} to view",
            expected=f"the path of a {medium.one}",
            got="none",
            do=f"regard view {medium.example} ..",
        )
    opened, model_kind = open_model(model or "")
    if model_kind is None or model_kind.files is not medium:
        raise _no_model_error(model, paths[0], medium)
    if len(paths) > MAX_FILES:
        raise OptionError(
            f"there are too many {medium.several} to view",
            expected=f"at most {MAX_FILES}",
            got=f"{len(paths):,}",
            do="view some of them; or embed them all: regard embed",
        )
    return opened, model_kind, paths


def _no_model_error(model: str | ModelFolder | None, path: str, medium: Medium) -> Exception:
    from regard.models.model_folder import ModelFolder

    if model is not None:
        _ = ModelFolder.open(model).config  # raises CheckpointError if there is no such model
    return OptionError(
        f"{path} is a {medium.one}, and " + (f"the model reads no {medium.several}" if model else "--model is missing"),
        expected=f"a model that reads {medium.several}, such as {medium.models}",
        got=f"--model {model}" if model else "no --model; the default, minilm, reads texts",
        do=f"regard view {shlex.quote(path)} --model FOLDER",
    )

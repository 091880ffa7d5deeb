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
    from rich.console import Console

    from regard.media import Medium
    from regard.models.kinds import ModelKind
    from regard.models.model_folder import ModelFolder
    from regard.view.picture_reading import PictureReading
    from regard.view.sound_reading import SoundReading

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

    kinds = (kind for kind in (PICTURES, SOUNDS) if arguments and all(is_file(one, kind) for one in arguments))
    return next(kinds, None)


def read_pictures(model: str | ModelFolder | None, arguments: list[str], labels: list[str]) -> list[PictureReading]:
    """Load the model, and capture its attention over each picture; a folder is all pictures in it.

    ``labels`` are the texts of a CLIP, or a label of another model. Raises OptionError for a model that reads no
    pictures, and for too many pictures or none.
    """
    from regard.vision.picture_file import PICTURES

    opened, kind, paths = _check_files(model, arguments, PICTURES)
    read = _make_reader(opened, labels, by_texts=kind.texts)
    readings: list[PictureReading] = []
    with count_progress(len(paths), PICTURES.several) as advance:
        for path in paths:
            readings.append(read(Path(path), name=path))
            advance(len(readings))
    return readings


def _make_reader(model: str | ModelFolder, labels: list[str], *, by_texts: bool) -> Callable[..., PictureReading]:
    """Load the model, and return the function that captures its attention.

    Raises OptionError for several labels of a model that is no CLIP.
    """
    from regard.models import Clip, ImageEncoder

    if labels and by_texts:
        from regard.view.read_clip import read_clip_attention

        return partial(read_clip_attention, Clip.load(model), texts=labels)
    if len(labels) > 1:
        raise OptionError(
            f"{model} takes one --label, beside the five most probable ones",
            expected="one label, or a CLIP, which takes any texts",
            got=f"{len(labels)} of --label",
            do="leave out all but one",
        )
    from regard.view.read_picture import read_picture_attention

    return partial(read_picture_attention, ImageEncoder.load(model), label=labels[0] if labels else None)


def read_sounds(model: str | ModelFolder | None, arguments: list[str]) -> list[SoundReading]:
    """Load the model, and capture its attention over each sound; a folder is all sounds in it.

    Raises OptionError for a model that reads no sounds, too many sounds or none.
    """
    from regard.audio.sound_file import SOUNDS
    from regard.models import AudioEncoder
    from regard.view.read_sound import read_sound_attention

    opened, _, paths = _check_files(model, arguments, SOUNDS)
    loaded = AudioEncoder.load(opened)
    readings: list[SoundReading] = []
    with count_progress(len(paths), SOUNDS.several) as advance:
        for path in paths:
            readings.append(read_sound_attention(loaded, Path(path), name=path))
            advance(len(readings))
    return readings


def show_media(
    kind: Medium,
    arguments: list[str],
    model: str | ModelFolder | None,
    labels: list[str],
    path: Path | None,
    console: Console,
    *,
    overwrite: bool,
) -> Path | None:
    """Write the page of pictures or sounds, if there is a ``path``, then print the summary."""
    from regard.cli.progress import indeterminate_progress
    from regard.vision.picture_file import PICTURES

    if kind is PICTURES:
        from regard.view.picture_page import write_pictures
        from regard.view.terminal_picture import print_pictures

        pictures = read_pictures(model, arguments, labels)
        if path is not None:
            with indeterminate_progress("writing the page"):
                write_pictures(pictures, path, model=str(model or ""), overwrite=overwrite)
        print_pictures(pictures, console)
        return path
    from regard.view.sound_page import write_sounds
    from regard.view.terminal_sound import print_sounds

    if labels:
        raise OptionError("--label belongs to pictures", expected="a picture", got="sounds", do="leave --label out")
    sounds = read_sounds(model, arguments)
    if path is not None:
        with indeterminate_progress("writing the page"):
            write_sounds(sounds, path, model=str(model or ""), overwrite=overwrite)
    print_sounds(sounds, console)
    return path


def _check_files(
    model: str | ModelFolder | None, arguments: list[str], kind: Medium
) -> tuple[str | ModelFolder, ModelKind, list[str]]:
    """The model, its kind, and the paths of the files. Raises OptionError or DataError for what cannot be shown."""
    paths = expand_folders(arguments, kind)
    if not paths:
        raise DataError(
            f"there is no {kind.one} to view",
            expected=f"the path of a {kind.one}",
            got="none",
            do=f"regard view {kind.example} ..",
        )
    opened, model_kind = open_model(model or "")
    if model_kind is None or model_kind.files is not kind:
        raise _no_model_error(model, paths[0], kind)
    if len(paths) > MAX_FILES:
        raise OptionError(
            f"there are too many {kind.several} to view",
            expected=f"at most {MAX_FILES}",
            got=f"{len(paths):,}",
            do="view some of them; or embed them all: regard embed",
        )
    return opened, model_kind, paths


def _no_model_error(model: str | ModelFolder | None, path: str, kind: Medium) -> Exception:
    from regard.models.kinds import AUDIO_ENCODER, IMAGE_ENCODER
    from regard.models.model_folder import ModelFolder

    if model is not None:
        _ = ModelFolder.open(model).config  # raises CheckpointError if there is no such model
    models = next(row.examples for row in (IMAGE_ENCODER, AUDIO_ENCODER) if row.files is kind)
    return OptionError(
        f"{path} is a {kind.one}, and " + (f"the model reads no {kind.several}" if model else "--model is missing"),
        expected=f"a model that reads {kind.several}, such as {models}",
        got=f"--model {model}" if model else "no --model; the default, minilm, reads texts",
        do=f"regard view {shlex.quote(path)} --model FOLDER",
    )

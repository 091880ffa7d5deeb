"""``regard view`` with pictures and sounds: the attention of a model over patches, or over a spectrogram."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.media_input import expand_folders, find_media_kind
from regard.cli.progress import count_progress
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.media import MediaKind
    from regard.view.picture_reading import PictureReading
    from regard.view.sound_reading import SoundReading

MAX_FILES = 12
"""Maximum number of pictures or sounds: a page holds every head of each, 7 MB for a ViT base."""


def find_named_kind(arguments: list[str]) -> MediaKind | None:
    """Pictures or sounds, if all arguments are files with names of this kind; else None."""
    from regard.audio.sound_file import SOUNDS
    from regard.vision.picture_file import PICTURES

    def is_file(text: str, kind: MediaKind) -> bool:
        try:
            return kind.is_name(Path(text)) and Path(text).is_file()
        except (OSError, ValueError):  # a text that is no valid path
            return False

    kinds = (kind for kind in (PICTURES, SOUNDS) if arguments and all(is_file(one, kind) for one in arguments))
    return next(kinds, None)


def read_pictures(model: str | None, arguments: list[str], label: str | None) -> list[PictureReading]:
    """Load the model, and capture its attention over each picture; a folder is all pictures in it.

    Raises OptionError for a model that reads no pictures, too many pictures or none.
    """
    from regard.models.load import load_image_encoder
    from regard.view.read_picture import read_picture_attention
    from regard.vision.picture_file import PICTURES

    name, paths = _check_files(model, arguments, PICTURES)
    loaded = load_image_encoder(name)
    readings: list[PictureReading] = []
    with count_progress(len(paths), PICTURES.several) as advance:
        for path in paths:
            readings.append(read_picture_attention(loaded, Path(path), label=label, name=path))
            advance(len(readings))
    return readings


def read_sounds(model: str | None, arguments: list[str]) -> list[SoundReading]:
    """Load the model, and capture its attention over each sound; a folder is all sounds in it.

    Raises OptionError for a model that reads no sounds, too many sounds or none.
    """
    from regard.audio.sound_file import SOUNDS
    from regard.models.load import load_audio_encoder
    from regard.view.read_sound import read_sound_attention

    name, paths = _check_files(model, arguments, SOUNDS)
    loaded = load_audio_encoder(name)
    readings: list[SoundReading] = []
    with count_progress(len(paths), SOUNDS.several) as advance:
        for path in paths:
            readings.append(read_sound_attention(loaded, Path(path), name=path))
            advance(len(readings))
    return readings


def show_media(
    kind: MediaKind,
    arguments: list[str],
    model: str | None,
    label: str | None,
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

        pictures = read_pictures(model, arguments, label)
        if path is not None:
            with indeterminate_progress("writing the page"):
                write_pictures(pictures, path, model=model or "", overwrite=overwrite)
        print_pictures(pictures, console)
        return path
    from regard.view.sound_page import write_sounds
    from regard.view.terminal_sound import print_sounds

    if label is not None:
        raise OptionError("--label belongs to pictures", expected="a picture", got="sounds", do="leave --label out")
    sounds = read_sounds(model, arguments)
    if path is not None:
        with indeterminate_progress("writing the page"):
            write_sounds(sounds, path, model=model or "", overwrite=overwrite)
    print_sounds(sounds, console)
    return path


def _check_files(model: str | None, arguments: list[str], kind: MediaKind) -> tuple[str, list[str]]:
    """The model and the paths of the files. Raises OptionError or DataError for what cannot be shown."""
    paths = expand_folders(arguments, kind)
    if not paths:
        raise DataError(
            f"there is no {kind.one} to view",
            expected=f"the path of a {kind.one}",
            got="none",
            do=f"regard view {kind.example} ..",
        )
    if model is None or find_media_kind(model) is not kind:
        raise _no_model_error(model, paths[0], kind)
    if len(paths) > MAX_FILES:
        raise OptionError(
            f"there are too many {kind.several} to view",
            expected=f"at most {MAX_FILES}",
            got=f"{len(paths):,}",
            do="view some of them; or embed them all: regard embed",
        )
    return model, paths


def _no_model_error(model: str | None, path: str, kind: MediaKind) -> Exception:
    if model is not None:
        from regard.models.load import is_image_model

        is_image_model(model)  # raises CheckpointError if there is no such model
    models = {"picture": "a ViT, a DeiT or a Swin", "sound": "a Conformer"}[kind.one]
    return OptionError(
        f"{path} is a {kind.one}, and " + (f"the model reads no {kind.several}" if model else "--model is missing"),
        expected=f"a model that reads {kind.several}, such as {models}",
        got=f"--model {model}" if model else "no --model; the default, minilm, reads texts",
        do=f"regard view {path} --model FOLDER",
    )

"""``regard view`` with pictures and sounds: the attention of a model over patches, or over a spectrogram."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.cli.loaded_model import ModelLoading, open_model
from regard.cli.media_input import expand_folders
from regard.cli.progress import track
from regard.cli.text_input import is_path
from regard.errors import DataError, OptionError, renamed_arguments
from regard.fields import option_field

if TYPE_CHECKING:
    from regard.media import Medium
    from regard.models.model import Model
    from regard.models.model_folder import ModelFolder
    from regard.view.picture_reading import PictureReading
    from regard.view.read_speech import SpeechModel

MAX_FILES = 12
"""Maximum number of pictures or sounds: a page holds every head of each, 7 MB for a ViT base."""


@final
@dataclass(frozen=True)
class MediaOptions:
    """The pictures that a model is shown on, and the labels that it is asked about."""

    picture: tuple[str, ...] = option_field(
        (), "Picture to show an image model on; repeat for more. Or give its path as an argument.", metavar="FILE"
    )
    label: tuple[str, ...] = option_field(
        (),
        "With pictures: a label whose gradient is shown too, beside those of the five most probable ones. With a "
        "CLIP: a text to compare with the picture; repeat for more.",
    )

    def check_no_label(self) -> None:
        """Raise OptionError for a label without pictures."""
        if self.label:
            raise OptionError("--label belongs to pictures", expected="a picture", got="texts", do="leave --label out")


def find_named_kind(arguments: list[str]) -> Medium | None:
    """Pictures, sounds or other files that a model reads, if all arguments are files with names of this kind."""
    from regard.audio.sound_file import SOUNDS
    from regard.vision.picture_file import PICTURES

    def find(media: Iterable[Medium]) -> Medium | None:
        return next((kind for kind in media if all(kind.is_name(Path(path)) for path in arguments)), None)

    if not arguments or not all(map(_is_file, arguments)):
        return None
    usual = find((PICTURES, SOUNDS))
    if usual is not None:  # without an import of the models, which takes seconds
        return usual
    from regard.models.load import list_media

    return find(list_media())


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a text that is no valid path
        return False


def read_media(
    medium: Medium, arguments: list[str], model: str | ModelFolder | None, labels: list[str], loading: ModelLoading
) -> list[PictureReading]:
    """Capture attention over files; a folder is all in it.

    ``labels`` are the texts of a CLIP, or a label of another model. Raises OptionError for a model that does not read
    the medium, and for too many files or none.
    """
    if labels and medium.singular != "picture":
        raise OptionError(
            "--label belongs to pictures", expected="a picture", got=medium.plural, do="leave --label out"
        )
    loaded, paths = _load_reader(model, arguments, medium, loading)
    from regard.view.read_file import read_file

    with renamed_arguments(labels="label"), track(paths, medium.plural) as tracked:
        return [read_file(loaded, Path(path), labels=labels, name=path) for path in tracked]


def _load_reader(
    model: str | ModelFolder | None, arguments: list[str], medium: Medium, loading: ModelLoading
) -> tuple[Model | SpeechModel, list[str]]:
    """The loaded model, and the paths of the files. Raises OptionError or DataError for what cannot be shown."""
    paths = expand_folders(arguments, medium)
    if not paths:
        raise DataError(
            f"there is no {medium.singular} to view",
            expected=f"the path of a {medium.singular}",
            got="none",
            do=f"regard view {medium.example} ..",
        )
    from regard.audio.sound_file import SOUNDS
    from regard.models.load import load

    opened, model_kind = open_model(model or "")
    is_of_transformers = medium is SOUNDS and model_kind is None and not isinstance(opened, str)
    if not is_of_transformers and (model_kind is None or model_kind.files is not medium):
        raise _no_model_error(model, paths[0], medium)
    if len(paths) > MAX_FILES:
        raise OptionError(
            f"there are too many {medium.plural} to view",
            expected=f"at most {MAX_FILES}",
            got=f"{len(paths):,}",
            do="view some of them; or embed them all: regard embed",
        )
    if not isinstance(opened, str) and is_of_transformers:
        from regard.showing import load_speech_model

        return load_speech_model(opened, weights=loading.weights, device=loading.device), paths
    return load(opened, weights=loading.weights, device=loading.device), paths


def _no_model_error(model: str | ModelFolder | None, path: str, medium: Medium) -> Exception:
    from regard.models.model_folder import ModelFolder

    if model is not None:
        _ = ModelFolder.open(model).config  # raises CheckpointError if there is no such model
    return OptionError(
        f"{path} is a {medium.singular}, and "
        + (f"the model reads no {medium.plural}" if model else "--model is missing"),
        expected=f"a model that reads {medium.plural}, such as {medium.models}",
        got=f"--model {model}" if model else "no --model; the default, minilm, reads texts",
        do=f"regard view {shlex.quote(path)} --model FOLDER",
    )


def find_kind(
    texts: list[str], pictures: list[str], model: str | None, *, is_of_pairs: bool
) -> tuple[str | ModelFolder | None, Medium | None]:
    """The model, opened if it decides, and pictures or sounds, by the arguments or by the model; None for texts.

    Raises OptionError for texts beside ``--picture``, or for a model of pictures or sounds.
    """
    if pictures:
        from regard.vision.picture_file import PICTURES

        stray = [text for text in texts if not is_path(text) and not PICTURES.is_name(Path(text))]
        if stray:
            raise OptionError(
                "--picture cannot be used with texts",
                expected="pictures, or texts",
                got=repr(stray[0][:60]),
                do="leave out the text, or --picture",
            )
        return model, PICTURES
    named = find_named_kind(texts)
    if named is not None or model is None or is_of_pairs:
        return model, named
    opened, model_kind = open_model(model)
    kind = None if model_kind is None or model_kind.texts else model_kind.files
    if kind is not None and texts and not any(map(is_path, texts)):
        if kind.is_name(Path(texts[0])):
            raise DataError(
                f"cannot read {texts[0]}",
                expected=f"a {kind.singular}",
                got="No such file or directory",
                do="check the path",
            )
        raise OptionError(
            f"{model} reads {kind.plural}, not texts",
            expected=f"the path of a {kind.singular}, such as {kind.example}",
            got=repr(texts[0][:60]),
            do=f'regard view {kind.example} --model {model}, or leave --model out: regard view "..."',
        )
    return opened, kind


def check_only_media(others: dict[str, Any], kind: Medium) -> None:
    """Raise OptionError for options that pictures or sounds do not have."""
    names = {name for name, value in others.items() if value}
    if names:
        raise OptionError(
            f"{min(names)} cannot be used with {kind.plural}",
            expected=f"{kind.plural}, --model{', --label' * (kind.singular == 'picture')} and --out",
            got=", ".join(sorted(names)),
            do=f"leave out {min(names)}",
        )

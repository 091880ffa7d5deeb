"""A model folder in Hugging Face layout, written aside and renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from regard.atomic_write import atomic_write_folder, recover_folder
from regard.errors import OptionError, OutputError, OutputExistsError, RegardError, check_flag, short_repr, write_error
from regard.models.weight_names import abbreviate_names

WEIGHTS = "model.safetensors"
_MODEL_FILES = {
    "config.json",
    WEIGHTS,
    "tokenizer.json",
    "source.tokenizer.json",
    "target.tokenizer.json",
    "about.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "1_Pooling",
}
"""All that ``write_folder`` ever writes, and so all that it may replace."""
_DESKTOP_FILES = {".ds_store", "thumbs.db", "desktop.ini"}


def config_text(fields: Mapping[str, object], dtype: torch.dtype) -> str:
    """A config.json."""
    return json.dumps({**fields, "dtype": str(dtype).removeprefix("torch.")}, indent=2) + "\n"


def write_folder(
    folder: Path,
    files: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    *,
    overwrite: bool = False,
    keep_others: bool = False,
) -> None:
    """Write a model folder aside, then rename it, so that it is there complete or not at all.

    Raises OutputExistsError where ``folder`` exists: without ``overwrite`` always, with it where it holds anything but
    a model. With ``keep_others`` too that is no reason: it goes into the new folder.
    """
    with atomic_model_folder(folder, overwrite=overwrite, keep_others=keep_others) as aside:
        for name, content in files.items():
            (aside / name).parent.mkdir(exist_ok=True)
            (aside / name).write_text(content, encoding="utf-8")
        write_tensors(aside / WEIGHTS, tensors)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Raises OutputError where that fails, for which the library has no OSError."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OutputError(
            f"{path} cannot be written",
            expected="room on the disk and the right to write",
            got=str(error),
            do="make room, or choose another place",
        ) from error


@contextmanager
def atomic_model_folder(folder: Path, *, overwrite: bool = False, keep_others: bool = False) -> Iterator[Path]:
    """An empty folder to write into, which becomes ``folder`` when all is written, or is removed where that fails.

    Arguments and OutputExistsError as for ``write_folder``.
    """
    check_flag("overwrite", overwrite)
    check_flag("keep_others", keep_others)
    folder = folder.expanduser().absolute()
    try:
        check_replaceable(folder, overwrite=overwrite, keep_others=keep_others)
        with atomic_write_folder(folder, _foreign_files) as aside:
            yield aside
    except RegardError:
        raise
    except OSError as error:
        raise write_error(f"the folder {short_repr(str(folder))} cannot be written", error) from error


def recover_model(folder: Path) -> None:
    """Put in order what kills left of writing a model folder, while nobody writes it."""
    recover_folder(folder.expanduser().absolute(), _foreign_files)


def to_folder_path(folder: object) -> Path:
    """The folder to write. Raises OptionError for what names none: another object, no text, half a character."""
    if not isinstance(folder, str | Path):
        raise OptionError(
            "a folder is named by a string or a path",
            expected="a str or a Path",
            got=short_repr(folder),
            do='"my-model"',
        )
    name = str(folder)
    if not name.strip() or "\0" in name or not _is_encodable(name):
        raise OptionError(
            "this cannot be the name of a folder",
            expected="characters that the system takes in a name",
            got=short_repr(name),
            do='"my-model"',
        )
    return Path(folder)


def _is_encodable(name: str) -> bool:
    """Whether the system can write it; a str may hold halves of characters."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def check_not_exists(folder: Path, do: str = "choose another name") -> None:
    """Raise OutputExistsError, which says what to ``do``, where ``folder`` exists."""
    if os.path.lexists(folder):
        raise OutputExistsError(f"{folder} exists already", expected="a new folder", got="an existing one", do=do)


def check_replaceable(folder: Path, *, overwrite: bool, keep_others: bool = False) -> None:
    """Raise OutputExistsError unless ``folder`` is free, or may be replaced and nothing in it would be lost."""
    if not os.path.lexists(folder):
        return
    if not overwrite:
        check_not_exists(folder, do="choose another name, or pass overwrite=True")
    if folder.is_symlink() or not folder.is_dir():
        raise OutputExistsError(
            f"{folder} is no folder", expected="a folder to replace", got="a link or a file", do="choose another name"
        )
    others = [] if keep_others else _foreign_files(folder)
    if others:
        raise OutputExistsError(
            f"{folder} holds files that are not of a saved model, and they would be lost",
            expected="only " + ", ".join(sorted(_MODEL_FILES)),
            got=abbreviate_names(others),
            do="choose another name, or move these files away",
        )


def is_desktop_file(name: str) -> bool:
    """Whether it is a file that a desktop leaves in folders that somebody looked into."""
    return name.lower() in _DESKTOP_FILES


def _foreign_files(folder: Path) -> list[str]:
    """What is in a folder and was written neither here nor by a desktop."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not is_desktop_file(path.name)}
    return sorted(found - _MODEL_FILES)

"""A model folder in Hugging Face layout, written aside and renamed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import OutputError, OutputExistsError
from regard.models.layout import listed

WEIGHTS = "model.safetensors"
_WRITTEN = {
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


def config_text(fields: Mapping[str, object], dtype: torch.dtype) -> str:
    """A config.json."""
    return json.dumps({**fields, "dtype": str(dtype).removeprefix("torch.")}, indent=2) + "\n"


def write_folder(
    folder: Path, files: Mapping[str, str], tensors: Mapping[str, Tensor], *, overwrite: bool = False
) -> None:
    """Write a model folder aside, then rename it, so that it is there complete or not at all.

    Raises OutputExistsError where ``folder`` exists: without ``overwrite`` always, with it where it holds anything but
    a model.
    """
    with written_aside(folder, overwrite=overwrite) as aside:
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
def written_aside(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """An empty folder to write into, which becomes ``folder`` when all is written, or is removed where that fails.

    Raises OutputExistsError as ``write_folder`` does.
    """
    folder = folder.expanduser().absolute()
    check_free(folder, overwrite=overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        yield aside
        for path in aside.rglob("*"):
            if path.is_file():
                sync_file(path)
        aside.chmod(0o755)  # mkdtemp makes it private
        _swap(aside, folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def check_new(folder: Path, do: str = "choose another name") -> None:
    """Raise OutputExistsError, which says what to ``do``, where ``folder`` exists."""
    if os.path.lexists(folder):
        raise OutputExistsError(f"{folder} exists already", expected="a new folder", got="an existing one", do=do)


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Raise OutputExistsError unless ``folder`` is free, or may be replaced and holds only what is written here."""
    if not os.path.lexists(folder):
        return
    if not overwrite:
        check_new(folder, do="choose another name, or pass overwrite=True")
    if folder.is_symlink() or not folder.is_dir():
        raise OutputExistsError(
            f"{folder} is no folder", expected="a folder to replace", got="a link or a file", do="choose another name"
        )
    others = sorted({str(path.relative_to(folder)) for path in folder.rglob("*")} - _WRITTEN)
    if others:
        raise OutputExistsError(
            f"{folder} holds files that are not of a saved model, and they would be lost",
            expected="only " + ", ".join(sorted(_WRITTEN)),
            got=listed(others),
            do="choose another name, or move these files away",
        )


def sync_file(path: Path) -> None:
    """Wait until the disk has it: the rename that follows must not come first."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _swap(aside: Path, folder: Path) -> None:
    """Put ``aside`` where ``folder`` is. No folder can be renamed onto a full one, so the old one steps aside first."""
    if not folder.exists():
        aside.replace(folder)
        return
    old = aside.with_suffix(".replaced")
    folder.replace(old)
    try:
        aside.replace(folder)
    except BaseException:
        old.replace(folder)
        raise
    shutil.rmtree(old)

"""A model folder in Hugging Face layout, written aside and renamed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import OutputExistsError
from regard.models.layout import listed

WEIGHTS = "model.safetensors"
_WRITTEN = {
    "config.json",
    WEIGHTS,
    "tokenizer.json",
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
    folder = folder.expanduser().absolute()
    _check_free(folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        for name, content in files.items():
            (aside / name).parent.mkdir(exist_ok=True)
            _write_text(aside / name, content)
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, aside / WEIGHTS, metadata={"format": "pt"})
        _sync(aside / WEIGHTS)
        aside.chmod(0o755)  # mkdtemp makes it private
        _swap(aside, folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _check_free(folder: Path, overwrite: bool) -> None:
    """Raise OutputExistsError unless ``folder`` is free, or may be replaced and holds only what is written here."""
    if not os.path.lexists(folder):
        return
    if not overwrite:
        raise OutputExistsError(
            f"{folder} exists already",
            expected="a new folder",
            got="an existing one",
            do="choose another name, or pass overwrite=True",
        )
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


def _write_text(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
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

"""Writing of a model folder in Hugging Face layout, atomically: under a temporary name, then renamed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.atomic_write import atomic_write_folder, recover_folder
from regard.errors import (
    OptionError,
    OutputError,
    OutputExistsError,
    RefusedError,
    RegardError,
    check_count,
    check_flag,
    short_repr,
    write_error,
)
from regard.language import abbreviate_names
from regard.list_files import is_desktop_file
from regard.models.config_file import to_json_text

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
METADATA_FILE = "about.json"
"""The metadata of the training: languages, data, scores."""
MAX_SHARD_BYTES = 5 * 10**9
"""Weights beyond this size are written in several files: then none takes long to copy, or is too large for a disk."""
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_MODEL_FILES = {
    "config.json",
    WEIGHTS,
    INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "source.tokenizer.json",
    "target.tokenizer.json",
    METADATA_FILE,
    "preprocessor_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "1_Pooling",
    "adapter_config.json",
    "adapter_model.safetensors",
}
"""All files of a saved model or adapters, and so all that may be replaced; and files of weights in several parts."""


def config_text(fields: Mapping[str, object], dtype: torch.dtype) -> str:
    """The text of a config.json: ``fields``, and the ``dtype`` of the weights.

    Raises RefusedError for an object that JSON does not have.
    """
    return json.dumps({**fields, "dtype": str(dtype).removeprefix("torch.")}, indent=2, default=_to_list) + "\n"


def metadata_texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The file of the metadata, as a text by file name; none without metadata."""
    return {METADATA_FILE: to_json_text(metadata)} if metadata else {}


def _to_list(value: object) -> object:
    """Convert an option that JSON does not have: a tensor or an array of indices, which options accept like lists."""
    if isinstance(value, Tensor | np.ndarray) and not isinstance(value, nn.Parameter):
        return value.tolist()
    raise RefusedError(
        "a model cannot be saved whose config has an object that JSON does not have",
        expected="options of numbers, strings, bools, None, and lists of these",
        got=short_repr(value),
        do="make the model without it; layers of a model that share a parameter make it themselves",
    )


def write_folder(
    folder: Path,
    files: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    *,
    overwrite: bool = False,
    keep_others: bool = False,
    max_shard_bytes: int | None = None,
) -> None:
    """Write a model folder atomically: it appears complete or not at all.

    ``files`` are texts by file name, ``tensors`` the weights. If these take more than ``max_shard_bytes``, they are
    written in several files with an index, each of at most that size or with a single tensor. Raises OutputExistsError
    if ``folder`` exists and ``overwrite`` is False, and with ``overwrite`` if it holds files that are not of a model,
    unless ``keep_others``, which moves them into the new folder.
    """
    if max_shard_bytes is not None:
        check_count("max_shard_bytes", max_shard_bytes)
    with atomic_model_folder(folder, overwrite=overwrite, keep_others=keep_others) as temporary:
        for name, content in files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text(content, encoding="utf-8")
        shards = [tensors] if max_shard_bytes is None else _split_by_size(tensors, max_shard_bytes)
        if len(shards) == 1:
            write_tensors(temporary / WEIGHTS, tensors)
            return
        places: dict[str, str] = {}
        for number, shard in enumerate(shards, start=1):
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            write_tensors(temporary / name, shard)
            places |= dict.fromkeys(shard, name)
        index = {"metadata": {"total_size": sum(map(_count_bytes, tensors.values()))}, "weight_map": places}
        (temporary / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _split_by_size(tensors: Mapping[str, Tensor], max_bytes: int) -> list[dict[str, Tensor]]:
    """Split tensors, in their order, into parts of at most ``max_bytes`` each, or of one larger tensor."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        own = _count_bytes(tensor)
        if shards[-1] and size + own > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += own
    return shards


def _count_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Raises OutputError in place of the library's error, which is not an OSError."""
    plain: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        contiguous = tensor.detach().cpu().contiguous()
        # The file's format has no two names for the same memory: a parameter of several layers is written for each.
        plain[name] = contiguous.clone() if contiguous.data_ptr() in places else contiguous
        places.add(contiguous.data_ptr())
    try:
        save_file(plain, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OutputError(
            f"{path} cannot be written",
            expected="free disk space and write permission",
            got=str(error),
            do="free disk space, or choose another folder",
        ) from error


@contextmanager
def atomic_model_folder(folder: Path, *, overwrite: bool = False, keep_others: bool = False) -> Iterator[Path]:
    """Yield an empty folder to write to, which becomes ``folder`` at the end of the block, or is removed on an error.

    Arguments and OutputExistsError as for ``write_folder``.
    """
    check_flag("overwrite", overwrite)
    check_flag("keep_others", keep_others)
    folder = folder.expanduser().absolute()
    try:
        check_replaceable(folder, overwrite=overwrite, keep_others=keep_others)
        with atomic_write_folder(folder, _foreign_files) as temporary:
            yield temporary
    except RegardError:
        raise
    except OSError as error:
        raise write_error(f"the folder {short_repr(str(folder))} cannot be written", error) from error


def recover_model(folder: Path) -> None:
    """Clean up after a process that was killed while it wrote a model folder. No other process may be writing it."""
    recover_folder(folder.expanduser().absolute(), _foreign_files)


def to_folder_path(folder: object) -> Path:
    """Check and return the folder to write. Raises OptionError for a wrong type, an empty or an unencodable name."""
    if not isinstance(folder, str | Path):
        raise OptionError(
            "a folder must be a string or a path",
            expected="a str or a Path",
            got=short_repr(folder),
            do='"my-model"',
        )
    name = str(folder)
    if not name.strip() or "\0" in name or not _is_encodable(name):
        raise OptionError(
            "invalid folder name",
            expected="a non-empty name of characters that the file system allows",
            got=short_repr(name),
            do='"my-model"',
        )
    return Path(folder)


def _is_encodable(name: str) -> bool:
    """Whether the name can be encoded for the file system (no lone surrogates)."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def check_not_exists(folder: Path, do: str = "choose another name") -> None:
    """Raise OutputExistsError, with ``do`` as its advice, if ``folder`` exists."""
    if os.path.lexists(folder):
        raise OutputExistsError(f"{folder} already exists", expected="a new folder", got="an existing one", do=do)


def check_replaceable(folder: Path, *, overwrite: bool, keep_others: bool = False) -> None:
    """Raise OutputExistsError unless ``folder`` is new, or may be replaced without losing other files."""
    if not os.path.lexists(folder):
        return
    is_folder = folder.is_dir() and not folder.is_symlink()
    if not overwrite:
        check_not_exists(
            folder, do="choose another name, or pass `overwrite=True`" if is_folder else "choose another name"
        )
    if not is_folder:
        raise OutputExistsError(
            f"{folder} is not a folder",
            expected="a folder to replace",
            got="a link or a file",
            do="choose another name",
        )
    others = [] if keep_others else _foreign_files(folder)
    if others:
        raise OutputExistsError(
            f"{folder} holds files that are not of a saved model, and they would be lost",
            expected="only " + ", ".join(sorted(_MODEL_FILES)),
            got=abbreviate_names(others),
            do="choose another name, or move these files away",
        )


def _foreign_files(folder: Path) -> list[str]:
    """The files of a folder that were written neither by this module nor by a desktop environment."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not is_desktop_file(path.name)}
    return sorted(name for name in names - _MODEL_FILES if not _SHARD.fullmatch(name))

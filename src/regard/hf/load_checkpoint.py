"""Loading of a checkpoint folder of ``transformers``: safetensors and tokenizer.json, from the disk alone.

Nothing in the folder is run: no pickle is opened, no code of the folder is imported (``trust_remote_code`` is never
set), and nothing is fetched. Weights that the folder lacks are refused, since they would be random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch import nn

from regard.errors import CheckpointError, RefusedError, class_and_line
from regard.hf.check import check
from regard.hf.checkpoint import Checkpoint, quiet_transformers
from regard.language import abbreviate_names
from regard.models.model_folder import ModelFolder
from regard.text import Tokenizer
from regard.text.path_arguments import PathLike, to_path

_NAME = "regard"


def load_checkpoint(folder: PathLike | ModelFolder) -> Checkpoint:
    """Load a text model of any type that ``transformers`` has.

    Raises CheckpointError for a folder that cannot be used, RefusedError for a model that does not read text.
    """
    opened = folder if isinstance(folder, ModelFolder) else ModelFolder(to_path(folder))
    model, tokenizer_file = load_model_and_tokenizer(opened, _find_text_class)
    if model.main_input_name != "input_ids":
        raise RefusedError(
            f"{opened.path} is a model that does not read text",
            expected="a model of token ids",
            got=f"a {type(model).__name__}, which reads {model.main_input_name}",
            do="record it from Python: with regard.record(model) as seen",
        )
    return Checkpoint(
        opened.path,
        model,
        Tokenizer.from_file(tokenizer_file, limit=_token_limit(model)),
        tokenizers.Tokenizer.from_str(tokenizer_file.read_text(encoding="utf-8")),
        check(model).uses_regard,
    )


def load_model_and_tokenizer(opened: ModelFolder, find_class: Callable[[Path, Any], Any]) -> tuple[Any, Path]:
    """Load a model, which computes with regard if its layers use the interface, and find its tokenizer.json.

    ``find_class`` returns the class of transformers that loads a folder with a config, or raises an error.
    """
    model = load_model(opened, find_class, with_tokenizer=True)
    layers = check(model)
    if layers.through_interface and not layers.own_code:
        model.set_attn_implementation(_NAME)
    return model, opened.path / "tokenizer.json"


def load_model(opened: ModelFolder, find_class: Callable[[Path, Any], Any], *, with_tokenizer: bool = False) -> Any:
    """Load a model in eval mode and float32, with attn_implementation="eager"; arguments as above.

    ``with_tokenizer`` refuses a folder without tokenizer.json.
    """
    if opened.adapters is not None:
        raise CheckpointError(
            f"{opened.adapters} holds adapters of a model that transformers reads",
            expected="a whole model",
            got="adapter_config.json, without config.json",
            do="merge it with peft: model.merge_and_unload().save_pretrained(new_folder)",
        )
    folder, config = opened.path, _read_config(opened)
    if with_tokenizer and not (folder / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{folder} has no tokenizer.json, so the model cannot read or write text",
            expected="tokenizer.json beside config.json",
            got=abbreviate_names(sorted(path.name for path in folder.iterdir())),
            do="save it: transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(
            f"{folder} has an adapter, which changes another model's weights",
            expected="a model with its own weights",
            got="adapter_config.json",
            do="merge it with peft: model.merge_and_unload().save_pretrained(new_folder)",
        )
    _ = opened.stored  # refuses pickles and damaged files
    return _load_model(folder, config, find_class(folder, config))


def _read_config(opened: ModelFolder) -> Any:
    """Read config.json by the class of ``transformers`` for its type; code that it names is ignored."""
    folder, kind = opened.path, opened.model_type
    if kind not in transformers.CONFIG_MAPPING:
        code = "; its code is in the folder, and regard never runs code of a checkpoint"
        raise CheckpointError(
            f"{folder} has an unsupported architecture",
            expected=f"a type of model that transformers {transformers.__version__} has",
            got=f"model_type {kind!r}" + (code if "auto_map" in opened.config.fields else ""),
            do="install a newer transformers, if it has this type",
        )
    with explain_folder_errors(folder), quiet_transformers():
        config = transformers.CONFIG_MAPPING[kind].from_pretrained(folder, local_files_only=True)
        config.use_cache = False
        return config


def _find_text_class(folder: Path, config: Any) -> Any:
    """The class that loads a text model. Raises RefusedError for a model of sounds, CheckpointError for others."""
    if reads_speech(config):
        raise RefusedError(
            f"{folder} is a speech model, which reads sounds and not texts",
            expected="a sound, such as talk.wav",
            got=f"a text, and model_type {config.model_type!r}",
            do=f"regard view talk.wav --model {folder}",
        )
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModel
    if type(config) not in auto._model_mapping:
        raise CheckpointError(
            f"{folder} has an unsupported architecture",
            expected="a text encoder, a decoder or an encoder-decoder of transformers",
            got=f"model_type {config.model_type!r}",
            do="record it from Python: with regard.record(model) as seen",
        )
    return auto


def reads_speech(config: Any) -> bool:
    """Whether a config of transformers is one of an encoder-decoder that reads sounds and writes texts."""
    return bool(config.is_encoder_decoder) and type(config) in transformers.AutoModelForSpeechSeq2Seq._model_mapping


def _load_model(folder: Path, config: Any, auto: Any) -> Any:
    """Load a model with "eager", which every type knows; some that ignore other names raise an error for them."""
    with explain_folder_errors(folder), quiet_transformers():
        model, loading = auto.from_pretrained(
            folder,
            config=config,
            attn_implementation="eager",
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    _check_shapes(folder, loading)
    _check_missing(folder, loading)
    _check_layers(folder, loading, model)
    return model.eval()


def _check_missing(folder: Path, loading: Mapping[str, Any]) -> None:
    """Raise CheckpointError if weights are missing; a pooler is not, since no attention layer depends on it."""
    missing = sorted(name for name in loading["missing_keys"] if "pooler" not in name)
    if missing:
        raise CheckpointError(
            f"{folder} lacks weights of the model",
            expected="all weights that config.json implies",
            got=f"{len(missing)} missing: {abbreviate_names(missing)}",
            do="check that config.json and the weights belong together",
        )


def _check_shapes(folder: Path, loading: Mapping[str, Any]) -> None:
    """Raise CheckpointError if weights have other sizes than those that config.json implies."""
    wrong = sorted(loading["mismatched_keys"])
    if wrong:
        name, stored, expected = wrong[0]
        raise CheckpointError(
            f"{folder}: {name} has another shape than config.json implies"
            if len(wrong) == 1
            else f"{folder}: {name} and {len(wrong) - 1:,} other weights have other shapes than config.json implies",
            expected=str(tuple(expected)),
            got=str(tuple(stored)),
            do="check that config.json and the weights belong together",
        )


def _check_layers(folder: Path, loading: Mapping[str, Any], model: Any) -> None:
    """Raise CheckpointError if the weights have more layers than config.json. Heads for other tasks are no layers."""
    known, prefix = set(map(_without_numbers, model.state_dict())), f"{model.base_model_prefix}."
    names = [(name, _without_numbers(name)) for name in loading["unexpected_keys"]]
    left = sorted(name for name, form in names if "#" in form and {form, form.removeprefix(prefix)} & known)
    if left:
        raise CheckpointError(
            f"{folder}: config.json and the weights have different numbers of layers",
            expected="all layers of the weights in config.json",
            got=f"weights that the model does not take: {abbreviate_names(left)}",
            do="check that config.json and the weights belong together",
        )


def _without_numbers(name: str) -> str:
    """The name of a weight with "#" for the numbers of layers."""
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


@contextmanager
def explain_folder_errors(folder: Path) -> Iterator[None]:
    """Turn any error of ``transformers`` into a CheckpointError."""
    try:
        yield
    # The library raises errors of many kinds for files that it cannot use.
    except Exception as error:
        raise CheckpointError(
            f"{folder} cannot be loaded by transformers",
            expected="a checkpoint folder: config.json, *.safetensors and tokenizer.json",
            got=class_and_line(error, 300),
            do="check that the files are complete, and that transformers is recent enough",
        ) from error


def _token_limit(model: nn.Module) -> int | None:
    """The longest text that the model has positions for; None if that is not known."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.num_embeddings - module.padding_idx - 1  # RoBERTa counts positions from there
    limit = getattr(model.config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None

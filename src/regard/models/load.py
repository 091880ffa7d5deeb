"""``regard.load``: load a trained model from packaged weights, a folder, or the Hugging Face Hub.

To add an architecture, add a file beside this one and its class to ``_CLASSES``.
"""

from __future__ import annotations

from pathlib import Path

import torch

from regard.arguments import explain_arguments
from regard.devices import resolve_device
from regard.errors import CheckpointError, DtypeError, check_choice, short_repr
from regard.kernels.int8_rows import check_cache_format
from regard.media import Medium
from regard.models.adapter_folder import add_adapters_of
from regard.models.bert import Bert
from regard.models.cache_formats import set_cache_format
from regard.models.causal_language_model import CausalLanguageModel
from regard.models.cct import Cct
from regard.models.checkpoint_reader import find_wrapped_names
from regard.models.clip import Clip
from regard.models.clip_text import ClipText
from regard.models.clip_vision import ClipVision
from regard.models.conformer import Conformer
from regard.models.cvt import Cvt
from regard.models.deit import Deit
from regard.models.gato import Gato
from regard.models.gpt2 import Gpt2
from regard.models.kinds import ModelKind
from regard.models.llama import Llama
from regard.models.mamba import Mamba
from regard.models.model import Model
from regard.models.model_folder import FolderOrName, ModelFolder
from regard.models.modernbert import ModernBert
from regard.models.perceiver import Perceiver
from regard.models.qwen3_next import Qwen3Next
from regard.models.recurrent import Recurrent
from regard.models.roberta import Roberta
from regard.models.swin import Swin
from regard.models.t5 import T5
from regard.models.text_classifier import TextClassifier
from regard.models.transformer import Transformer
from regard.models.transformer_encoder import TransformerEncoder
from regard.models.vit import Vit
from regard.models.weight_formats import convert_weights
from regard.number_formats import WEIGHT_FORMATS
from regard.text import Tokenizer
from regard.validation import FLOATS

_CLASSES: tuple[type[Model], ...] = (
    Bert, Cct, Clip, ClipText, ClipVision, Conformer, Cvt, Deit, Gato, Gpt2, Llama, Mamba, ModernBert, Perceiver,
    Qwen3Next, Recurrent, Roberta, Swin, T5, TextClassifier, Transformer, TransformerEncoder, Vit,
)  # fmt: skip
"""The classes whose folders are loaded; each says which types it reads."""
_MODELS = {model_type: model for model in _CLASSES for model_type in model.model_types}


@explain_arguments
def load(
    folder_or_name: FolderOrName,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    weights: str | None = None,
    cache_format: str | None = None,
) -> Model:
    """Load a trained model in eval mode.

    The model has ``.config``; an ``Encoder``, a ``CausalLanguageModel`` and a ``T5`` also have ``.tokenizer``, an
    ``EncoderDecoder`` ``.subwords``, an ``ImageEncoder`` and an ``AudioEncoder`` ``.processor``, which are None if the
    folder has none.

    Args:
        folder_or_name: "minilm"; a folder in Hugging Face layout; or a name on the Hub, such as
            "google-bert/bert-base-uncased", which needs ``pip install 'regard[hub]'``. Only safetensors are read.
            A folder of low-rank adapters names the language model to whose weights they are added.
        device: the device of the model: None is the CPU, "auto" an accelerator such as a GPU if there is one, else the
            CPU.
        dtype: the dtype of the weights, which are converted to it; None is float32.
        weights: the format of the weights of linear layers: "int8", rounded to a quarter of the bytes of float32; None
            is ``dtype``. Such a model cannot be saved or trained.
        cache_format: the format of the keys and values that a decoder caches while it writes: "int8", rounded to half
            the bytes of bfloat16, with a scale for each token and head; None is ``dtype``.

    Raises OptionError if ``folder_or_name`` is neither a string nor a path, and for unknown ``weights`` or an unknown
    ``cache_format``; CheckpointError if there is no such model or it cannot be read; RefusedError for ``weights`` of a
    model without linear layers, or with weights that are not finite, and for the ``cache_format`` of a model that
    caches no keys and values; MissingPackageError, DeviceError or DtypeError.
    """
    if weights is not None:
        check_choice("format of weights", weights, WEIGHT_FORMATS)
    check_cache_format(cache_format)
    if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in FLOATS):
        raise DtypeError(
            "weights need a floating-point dtype",
            expected=", ".join(map(str, FLOATS)),
            got=short_repr(dtype),
            do="leave dtype out for torch.float32",
        )
    target = resolve_device(device)
    folder = ModelFolder.open(folder_or_name)
    model = find_class(folder).from_folder(folder, dtype=dtype or torch.float32)
    folder.note(find_wrapped_names(folder.path, folder.stored))
    folder.note(_find_missing_tokens(folder.path, model.text_tokenizer))
    model.notes = tuple(folder.notes)
    if folder.adapters is not None:
        _add_adapters(folder.adapters, model, folder)
    if weights is not None:
        convert_weights(model, weights)
    if cache_format is not None:
        set_cache_format(model, cache_format)
    return model.to(target)


def _add_adapters(adapters: Path, model: Model, base: ModelFolder) -> None:
    if not isinstance(model, CausalLanguageModel):
        raise CheckpointError(
            f"the adapters in {adapters} are for another kind of model",
            expected="adapters of a language model, such as a GPT-2 or a Llama",
            got=f"a base that is a {type(model).__name__}",
            do="merge them with peft: PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(new)",
        )
    add_adapters_of(adapters, model, base)


def find_class(folder: ModelFolder) -> type[Model]:
    """The class of the model of a folder. Raises CheckpointError for an architecture that no class reads."""
    if not has_class(folder):
        raise CheckpointError(
            f"{folder.path} has an unsupported architecture",
            expected="one of " + ", ".join(sorted(_MODELS)),
            got=f"model_type {folder.model_type!r}",
            do="load a model of a supported architecture; or load this one with transformers: import regard.hf, and "
            'from_pretrained(folder, attn_implementation="regard"), if regard.hf.check(model) says that it works',
        )
    return _MODELS[folder.model_type].class_of(folder)


def find_kind(folder: ModelFolder) -> ModelKind | None:
    """The kind of the model of a folder; None for an architecture that no class reads."""
    return find_class(folder).kind_of(folder) if has_class(folder) else None


def list_media() -> list[Medium]:
    """The pictures, sounds and other files that models read."""
    media = (model.kind.files for model in _MODELS.values())
    return list(dict.fromkeys(medium for medium in media if medium is not None))


def has_class(folder: ModelFolder) -> bool:
    """Whether ``load`` reads models of this type."""
    return folder.model_type in _MODELS


def _find_missing_tokens(folder: Path, tokenizer: object) -> str | None:
    """A note if the tokenizer has tokens that the model lacks."""
    if not isinstance(tokenizer, Tokenizer) or tokenizer.num_embeddings is None:
        return None
    if tokenizer.vocabulary <= tokenizer.num_embeddings:
        return None
    note = f"{folder}: tokenizer.json has {tokenizer.vocabulary} tokens and the model {tokenizer.num_embeddings}; "
    return note + "texts with a token that the model lacks are refused"

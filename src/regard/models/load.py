"""``regard.load``: load a trained model from packaged weights, a folder, or the Hugging Face Hub.

To add an architecture, add a file beside this one and a row to ``_MODELS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, DtypeError, short_repr
from regard.models import adapter_folder
from regard.models.audio_encoder import AudioEncoder
from regard.models.base import Decoder, Encoder
from regard.models.bert import Bert
from regard.models.causal_language_model import CausalLanguageModel
from regard.models.cct import MODEL_TYPE as CCT_TYPE
from regard.models.cct import Cct
from regard.models.checkpoint_reader import note_missing_tokens, stored_tensors
from regard.models.clip import MODEL_TYPE as CLIP_TYPE
from regard.models.clip import Clip
from regard.models.clip_text import MODEL_TYPE as CLIP_TEXT_TYPE
from regard.models.clip_text import ClipText
from regard.models.clip_vision import MODEL_TYPE as CLIP_VISION_TYPE
from regard.models.clip_vision import OWN_MODEL_TYPE as OWN_CLIP_VISION_TYPE
from regard.models.clip_vision import ClipVision
from regard.models.config_file import ConfigFile
from regard.models.conformer import Conformer
from regard.models.cvt import Cvt
from regard.models.deit import Deit
from regard.models.gato import Gato
from regard.models.gato_config import MODEL_TYPE as GATO_TYPE
from regard.models.gpt2 import Gpt2
from regard.models.image_encoder import ImageEncoder
from regard.models.llama import Llama
from regard.models.llama_types import MODEL_TYPES
from regard.models.load_t5 import load_t5
from regard.models.model_folder import (
    ModelKind,
    resolve_folder,
)
from regard.models.modernbert import ModernBert
from regard.models.perceiver import Perceiver
from regard.models.perceiver_config import MODEL_TYPE as PERCEIVER_TYPE
from regard.models.perceiver_config import OWN_MODEL_TYPE as OWN_PERCEIVER_TYPE
from regard.models.perceiver_image_encoder import classifies_pictures
from regard.models.recurrent import Recurrent
from regard.models.roberta import ROBERTA_TYPES, Roberta
from regard.models.swin import Swin
from regard.models.t5_config import MODEL_TYPES as T5_TYPES
from regard.models.text_classifier import TextClassifier
from regard.models.text_part import TEXT_TYPES, load_text_part
from regard.models.transformer import Transformer
from regard.models.transformer_encoder import TransformerEncoder
from regard.models.vision_transformer import OWN_TYPE
from regard.models.vit import Vit
from regard.models.wrapped_names import note_wrapped_names
from regard.validation import FLOATS, resolve_device


class FolderReader(Protocol):
    """A function that loads a model from its folder, in eval mode."""

    def __call__(
        self, folder: Path, config: ConfigFile, *, dtype: torch.dtype
    ) -> Encoder | Decoder | ImageEncoder | AudioEncoder | Perceiver | Clip | Gato:
        """Load the model of ``folder``, whose config.json is ``config``. Raises CheckpointError for unusable files."""
        ...


_MODELS: Mapping[str, FolderReader] = {
    "bert": Bert.from_folder,
    GATO_TYPE: Gato.from_folder,
    "gpt2": Gpt2.from_folder,
    "modernbert": ModernBert.from_folder,
    **dict.fromkeys(("vit", OWN_TYPE + "vit"), Vit.from_folder),
    **dict.fromkeys(("deit", OWN_TYPE + "deit"), Deit.from_folder),
    "swin": Swin.from_folder,
    CLIP_TYPE: Clip.from_folder,
    CLIP_TEXT_TYPE: ClipText.from_folder,
    **dict.fromkeys((CLIP_VISION_TYPE, OWN_CLIP_VISION_TYPE), ClipVision.from_folder),
    CCT_TYPE: Cct.from_folder,
    "cvt": Cvt.from_folder,
    **dict.fromkeys(MODEL_TYPES, Llama.from_folder),
    **dict.fromkeys(TEXT_TYPES, load_text_part),
    **dict.fromkeys(ROBERTA_TYPES, Roberta.from_folder),
    **dict.fromkeys(T5_TYPES, load_t5),
    PERCEIVER_TYPE: Perceiver.from_folder,
    OWN_PERCEIVER_TYPE: Perceiver.from_folder,
    Conformer.model_type: Conformer.from_folder,
    Transformer.model_type: Transformer.from_folder,
    Recurrent.model_type: Recurrent.from_folder,
    TransformerEncoder.model_type: TransformerEncoder.from_folder,
    TextClassifier.model_type: TextClassifier.from_folder,
}
"""The loader of each ``model_type`` in config.json."""
LANGUAGE_MODELS = frozenset({"gpt2", *MODEL_TYPES, *TEXT_TYPES})
"""The types among them that are language models: decoders without an encoder."""


@explain_arguments
def load(
    folder_or_name: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Encoder | Decoder | ImageEncoder | AudioEncoder | Perceiver | Clip | Gato:
    """Load a trained model in eval mode.

    The model has ``.config``; an ``Encoder``, a ``CausalLanguageModel`` and a ``T5`` also have ``.tokenizer``, an
    ``EncoderDecoder`` ``.subwords``, an ``ImageEncoder`` and an ``AudioEncoder`` ``.processor``, which are None if the
    folder has none.

    Args:
        folder_or_name: "minilm"; a folder in Hugging Face layout; or a name on the Hub, such as
            "google-bert/bert-base-uncased", which needs ``pip install 'regard[hub]'``. Only safetensors are read.
            A folder of low-rank adapters names the language model to whose weights they are added.
        device: the device of the model; None is the CPU.
        dtype: the dtype of the weights, which are converted to it; None is float32.

    Raises OptionError if ``folder_or_name`` is neither a string nor a path, CheckpointError if there is no such model
    or it cannot be read, MissingPackageError, DeviceError or DtypeError.
    """
    if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in FLOATS):
        raise DtypeError(
            "weights need a floating-point dtype",
            expected=", ".join(map(str, FLOATS)),
            got=short_repr(dtype),
            do="leave dtype out for torch.float32",
        )
    target = resolve_device(device)
    adapters = resolve_folder(folder_or_name)
    folder = resolve_base(adapters)
    config = ConfigFile.read(folder)
    if config.model_type not in _MODELS:
        raise CheckpointError(
            f"{folder} has an unsupported architecture",
            expected="one of " + ", ".join(sorted(_MODELS)),
            got=f"model_type {config.model_type!r}",
            do="load a model of a supported architecture; or load this one with transformers: import regard.hf, and "
            'from_pretrained(folder, attn_implementation="regard"), if regard.hf.check(model) says that it works',
        )
    model = _MODELS[config.model_type](folder, config, dtype=dtype or torch.float32)
    model.notes += note_wrapped_names(folder, stored_tensors(folder))
    model.notes += note_missing_tokens(folder, getattr(model, "tokenizer", None))
    if folder != adapters:
        _add_adapters(adapters, model, folder)
    return model.to(target)


def resolve_base(folder: Path) -> Path:
    """Find the folder of the model to which the adapters in ``folder`` belong; of a model, it is the folder itself.

    Raises CheckpointError if there is no such model, or if it consists of adapters too.
    """
    if not adapter_folder.is_adapter_folder(folder):
        return folder
    name = adapter_folder.base_name(folder)
    beside = folder / name
    base = beside if beside.is_dir() and not Path(name).is_dir() else resolve_folder(name, _base_kind(folder))
    if adapter_folder.is_adapter_folder(base):
        raise CheckpointError(
            f"the adapters in {folder} are for a model that consists of adapters itself",
            expected="a model folder with config.json, or a name on the Hub",
            got=f'"base_model_name_or_path": "{name}"',
            do=f"load {base} with regard.load, save it as a model, and name that folder",
        )
    return base


def _base_kind(folder: Path) -> ModelKind:
    return ModelKind(
        f'the model to which the adapters in {folder} belong, "base_model_name_or_path" in {adapter_folder.CONFIG}',
        f"put the model there, or name its folder in {folder / adapter_folder.CONFIG}",
    )


def _add_adapters(folder: Path, model: nn.Module, base: Path) -> None:
    if not isinstance(model, CausalLanguageModel):
        raise CheckpointError(
            f"the adapters in {folder} are for another kind of model",
            expected="adapters of a language model, such as a GPT-2 or a Llama",
            got=f"a base that is a {type(model).__name__}",
            do="merge them with peft: PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(new)",
        )
    adapter_folder.add_adapters_of(folder, model, base)


def has_loader(model_type: str) -> bool:
    """Whether ``load`` reads models of this type."""
    return model_type in _MODELS


def is_image_model(folder_or_name: str | Path) -> bool:
    """Whether a model reads pictures, by its config.json. Raises CheckpointError if there is no such model."""
    config = ConfigFile.read(resolve_folder(folder_or_name))
    if config.model_type in (PERCEIVER_TYPE, OWN_PERCEIVER_TYPE):
        return classifies_pictures(Perceiver.read_config(config))
    return _loads_a(ImageEncoder, config)


def is_audio_model(folder_or_name: str | Path) -> bool:
    """Whether a model reads sounds, by its config.json. Raises CheckpointError if there is no such model."""
    return _loads_a(AudioEncoder, ConfigFile.read(resolve_folder(folder_or_name)))


def _loads_a(base: type, config: ConfigFile) -> bool:
    """Whether models of this type are subclasses of ``base``."""
    kind = getattr(_MODELS.get(config.model_type), "__self__", None)
    return isinstance(kind, type) and issubclass(kind, base)


def is_clip(folder_or_name: str | Path) -> bool:
    """Whether a model is a CLIP with both towers, by its config.json. Raises CheckpointError if there is no model."""
    return ConfigFile.read(resolve_folder(folder_or_name)).model_type == CLIP_TYPE

"""Load a model of one kind, such as a translator, and say of another kind what it is for."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.errors import CheckpointError
from regard.models.audio_encoder import AudioEncoder
from regard.models.base import Encoder, EncoderDecoder
from regard.models.causal_language_model import CausalLanguageModel
from regard.models.clip import Clip
from regard.models.gato import Gato
from regard.models.image_encoder import ImageEncoder
from regard.models.load import load
from regard.models.masked_language_model import MaskedLanguageModel
from regard.models.model_folder import (
    AUDIO_ENCODER,
    CLASSIFIER,
    CLIP_MODEL,
    GATO,
    IMAGE_ENCODER,
    LANGUAGE_MODEL,
    MASKED_LANGUAGE_MODEL,
    TRANSLATOR,
    resolve_folder,
)
from regard.models.perceiver import Perceiver
from regard.models.perceiver_image_encoder import PerceiverImageEncoder, classifies_pictures
from regard.models.t5 import T5
from regard.models.text_classifier import TextClassifier


def load_encoder(folder_or_name: str | Path, *, dtype: torch.dtype | None = None) -> Encoder:
    """Load a text encoder, without a masked-language head, which takes time for each token of a large vocabulary.

    Of a T5 it is the encoder, of a CLIP the text tower.

    Raises CheckpointError for another kind of model, and what ``load`` raises.
    """
    model = load(folder_or_name, dtype=dtype)
    if isinstance(model, T5):
        return model.encoder
    if isinstance(model, Clip):
        return model.text
    if not isinstance(model, Encoder):
        raise _wrong_kind_error(folder_or_name, "a text encoder, such as a BERT", model)
    if isinstance(model, MaskedLanguageModel):
        model.remove_parts()
    return model


def load_translator(folder_or_name: str | Path, *, device: torch.device | str | None = None) -> EncoderDecoder:
    """Load a translation model. Raises CheckpointError for another kind of model, and what ``load`` raises."""
    model = load(resolve_folder(folder_or_name, TRANSLATOR), device=device)
    if not isinstance(model, EncoderDecoder):
        raise _wrong_kind_error(
            folder_or_name, "a translation model, written by `regard train translate`, or a T5", model
        )
    return model


def load_classifier(folder_or_name: str | Path, *, device: torch.device | str | None = None) -> TextClassifier:
    """Load a text classifier. Raises CheckpointError for another kind of model, and what ``load`` raises."""
    model = load(resolve_folder(folder_or_name, CLASSIFIER), device=device)
    if not isinstance(model, TextClassifier):
        raise _wrong_kind_error(folder_or_name, "a text classifier, written by `regard train classify`", model)
    return model


def load_gato(folder_or_name: str | Path, *, device: torch.device | str | None = None) -> Gato:
    """Load a Gato. Raises CheckpointError for another kind of model, and what ``load`` raises."""
    model = load(resolve_folder(folder_or_name, GATO), device=device)
    if not isinstance(model, Gato):
        raise _wrong_kind_error(folder_or_name, "a Gato, written by `regard train gato`", model)
    return model


def load_language_model(
    folder_or_name: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> CausalLanguageModel:
    """Load a language model. Raises CheckpointError for another kind of model, and what ``load`` raises."""
    model = load(resolve_folder(folder_or_name, LANGUAGE_MODEL), device=device, dtype=dtype)
    if not isinstance(model, CausalLanguageModel):
        raise _wrong_kind_error(folder_or_name, "a language model, such as a GPT-2 or a Llama", model)
    return model


def load_masked_language_model(
    folder_or_name: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> MaskedLanguageModel:
    """Load a masked language model, with its head if the folder holds one.

    Raises CheckpointError for another kind of model, and what ``load`` raises.
    """
    model = load(resolve_folder(folder_or_name, MASKED_LANGUAGE_MODEL), device=device, dtype=dtype)
    if not isinstance(model, MaskedLanguageModel):
        raise _wrong_kind_error(folder_or_name, "a BERT, a RoBERTa or a ModernBERT", model)
    return model


def load_image_encoder(
    folder_or_name: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> ImageEncoder:
    """Load a model that reads pictures, with its head if the folder holds one; of a CLIP the vision tower.

    Raises CheckpointError for another kind of model, and what ``load`` raises.
    """
    model = load(resolve_folder(folder_or_name, IMAGE_ENCODER), device=device, dtype=dtype)
    if isinstance(model, Perceiver) and classifies_pictures(model.config):
        return PerceiverImageEncoder(model).eval()
    if isinstance(model, Clip):
        return model.vision
    if not isinstance(model, ImageEncoder):
        raise _wrong_kind_error(folder_or_name, "a model that reads pictures, such as a ViT", model)
    return model


def load_clip(
    folder_or_name: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Clip:
    """Load a CLIP. Raises CheckpointError for another kind of model, and what ``load`` raises."""
    model = load(resolve_folder(folder_or_name, CLIP_MODEL), device=device, dtype=dtype)
    if not isinstance(model, Clip):
        raise _wrong_kind_error(folder_or_name, "a CLIP with both towers", model)
    return model


def load_image_classifier(
    folder_or_name: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> ImageEncoder:
    """Load a model that classifies pictures.

    Raises CheckpointError for one without a head, and what ``load`` raises.
    """
    model = load_image_encoder(folder_or_name, device=device, dtype=dtype)
    if not model.labels:
        raise CheckpointError(
            f"{folder_or_name} has no labels",
            expected="an image encoder with a classification head",
            got=f"a {type(model).__name__} without a head",
            do="train a head on it, or load the folder of a classifier",
        )
    return model


def load_audio_encoder(
    folder: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> AudioEncoder:
    """Load a model that reads sounds, with its head if the folder holds one.

    Raises CheckpointError for another kind of model, and what ``load`` raises.
    """
    model = load(resolve_folder(folder, AUDIO_ENCODER), device=device, dtype=dtype)
    if not isinstance(model, AudioEncoder):
        raise _wrong_kind_error(folder, "a model that reads sounds, such as a Conformer", model)
    return model


def _wrong_kind_error(name: str | Path, expected: str, model: object) -> CheckpointError:
    return CheckpointError(
        f"{name} is another kind of model",
        expected=expected,
        got=type(model).__name__,
        do=f"load another model; this one is used with: {_commands_of(model)}",
    )


def _commands_of(model: object) -> str:
    """The commands, or the function, that use a model of this kind."""
    if isinstance(model, ImageEncoder):
        return "regard classify, regard evaluate classify, regard embed, regard train classify --from"
    if isinstance(model, EncoderDecoder):
        return "regard translate, regard evaluate translate, regard view --source"
    if isinstance(model, TextClassifier):
        return "regard classify, regard evaluate classify, regard view"
    if isinstance(model, CausalLanguageModel):
        return "regard generate, regard evaluate lm, regard view"
    if isinstance(model, MaskedLanguageModel):
        evaluated = ", regard evaluate mlm" if model.config.head else ""
        return f"regard embed, regard view{evaluated}, regard train classify --from"
    if isinstance(model, Clip):
        return "regard embed, with texts or pictures, and regard classify --labels"
    if isinstance(model, AudioEncoder):
        return "Python: features, mask = model.processor([path]), then model(features, mask=mask)"
    if isinstance(model, Perceiver):
        return "Python: model = regard.load(folder), then model(inputs)"
    if isinstance(model, Gato):
        return "regard play"
    return "regard embed, regard view"

"""A folder that the Auto classes of ``transformers`` open, and that computes the same there.

Most models are saved in the layout of ``transformers`` anyway. What only regard can compute has a ``model_type`` that
begins with "regard-", and is refused. A text classifier has a class there if it reads the first token of a BERT or a
RoBERTa:

    ours      logits = W h + b                                   h: the hidden state of the first token
    theirs    logits = W' tanh(P h + p) + b'                     ``BertForSequenceClassification``, also for RoBERTa

With P = 2^-k I, p = 0 and W' = 2^k W both give the same numbers: products with powers of two are exact, and
tanh(x) = x (1 - x^2 / 3 + ..) is x to half a unit of the last place of float32 if |x| <= 2^-12. h is the output of a
layer norm of width d, so no component is larger than max_i(|gamma_i| sqrt(d) + |beta_i|), which gives k.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RefusedError
from regard.models import checkpoint_writer
from regard.models.base import Encoder
from regard.models.bert import Bert
from regard.models.label_names import label_fields, problem_fields
from regard.models.model import Model
from regard.models.modernbert import ModernBert
from regard.models.post_norm_encoder import PostNormEncoder
from regard.models.roberta import ROBERTA_TYPES, Roberta
from regard.models.text_classifier import TextClassifier
from regard.text.transformers_files import encoder_tokenizer_files

_OWN = "regard-"


def write(model: Model, folder: Path) -> None:
    """Write ``model`` into a new folder. Raises RefusedError for a model that ``transformers`` has no class for."""
    if isinstance(model, TextClassifier):
        _write_classifier(model, folder)
        return
    model_type = str(model.config_fields()["model_type"])
    if model_type.startswith(_OWN):
        raise RefusedError(
            f"transformers has no class that computes this {type(model).__name__}",
            expected="a model in the layout of transformers: its config and mechanism are those of a published type",
            got=f"a {type(model).__name__}, saved with model_type {model_type!r}",
            do='export it to ONNX, if it is an encoder or a classifier: `form="onnx"`',
        )
    model.save(folder)


def _write_classifier(model: TextClassifier, folder: Path) -> None:
    fields, tensors = _config_fields(model), _tensors(model)
    files = {"config.json": checkpoint_writer.config_text(fields, model.head.weight.dtype)}
    if model.tokenizer is not None:
        files |= encoder_tokenizer_files(model.tokenizer, model.max_tokens)
    files |= checkpoint_writer.metadata_texts(model.metadata)
    checkpoint_writer.write_folder(folder, files, tensors, max_shard_bytes=checkpoint_writer.MAX_SHARD_BYTES)


_LINEAR_BITS = 12
"""tanh(x) is x in float32 for |x| up to 2 to the minus this."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def _config_fields(model: TextClassifier) -> dict[str, Any]:
    """The fields of config.json. Raises RefusedError for a classifier that no class of ``transformers`` computes."""
    encoder = _check_classifier(model)
    return {
        **encoder.config_fields(),
        "architectures": [_class_prefix(encoder) + "ForSequenceClassification"],
        **label_fields(model.labels),
        **problem_fields(several=model.config.several),
        "classifier_dropout": model.config.dropout,
    }


def _tensors(model: TextClassifier) -> dict[str, Tensor]:
    """The weights under their names in ``transformers``. Raises RefusedError as ``_config_fields``."""
    encoder = _check_classifier(model)
    prefix = encoder.file_prefix
    named = {prefix + name: tensor for name, tensor in encoder.weight_names.to_file(encoder.state_dict()).items()}
    factor = 2.0 ** -math.ceil(math.log2(_largest_hidden(encoder)) + _LINEAR_BITS)
    identity = torch.eye(encoder.width, dtype=model.head.weight.dtype, device=model.head.weight.device)
    dense, head = ("bert.pooler.dense", "classifier") if isinstance(encoder, Bert) else _ROBERTA_HEAD
    return named | {
        f"{dense}.weight": identity * factor,
        f"{dense}.bias": torch.zeros_like(identity[0]),
        f"{head}.weight": model.head.weight / factor,
        f"{head}.bias": model.head.bias,
    }


_ROBERTA_HEAD = ("classifier.dense", "classifier.out_proj")


def _check_classifier(model: TextClassifier) -> PostNormEncoder:
    """Return the encoder of a classifier that ``transformers`` has a class for, else raise RefusedError."""
    encoder = model.encoder
    if not isinstance(encoder, PostNormEncoder):
        raise _refusal(_describe_encoder(encoder), "a BERT or a RoBERTa", type(encoder).__name__)
    if model.config.pooling != "cls":
        raise _refusal(
            "its classes for a BERT or a RoBERTa read the first token, and none the mean of all tokens",
            '`pooling="cls"`',
            f'pooling="{model.config.pooling}"',
        )
    if model.head.weight.dtype not in _DTYPES:
        raise _refusal(
            "float16 has too few exponents for the weights of the head",
            ", ".join(map(str, _DTYPES)),
            str(model.head.weight.dtype),
        )
    return encoder


def _describe_encoder(encoder: Encoder) -> str:
    if isinstance(encoder, ModernBert):
        return "its class for a ModernBERT normalises the vector of a text before the head"
    return f"it has no class with the encoder {type(encoder).__name__}"


def _refusal(reason: str, expected: str, got: str) -> RefusedError:
    return RefusedError(
        f"transformers has no class that computes this classifier: {reason}",
        expected=expected,
        got=got,
        do='export it to ONNX: `form="onnx"`',
    )


def _class_prefix(encoder: PostNormEncoder) -> str:
    return ROBERTA_TYPES[encoder.config.model_type] if isinstance(encoder, Roberta) else "Bert"


def _largest_hidden(encoder: PostNormEncoder) -> float:
    """A bound of the largest component of a hidden state, 1 at least."""
    norm = encoder.layers[-1].feed_forward_residual.norm
    assert isinstance(norm, nn.LayerNorm)
    with torch.no_grad():
        bound = norm.weight.double().abs() * encoder.width**0.5 + norm.bias.double().abs()
    return max(float(bound.max()), 1.0)

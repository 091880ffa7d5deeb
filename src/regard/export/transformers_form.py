"""A folder that the Auto classes of ``transformers`` open, and that computes the same there.

Most models are saved in the layout of ``transformers`` anyway. A text classifier has a class there if it reads the
first token of a BERT or a RoBERTa (``sequence_classifier``). What only regard can compute has a ``model_type`` that
begins with "regard-", and is refused.
"""

from __future__ import annotations

from pathlib import Path

from regard.errors import RefusedError
from regard.export import sequence_classifier
from regard.models import checkpoint_writer
from regard.models.model import Model
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
    fields, tensors = sequence_classifier.config_fields(model), sequence_classifier.tensors(model)
    files = {"config.json": checkpoint_writer.config_text(fields, model.head.weight.dtype)}
    if model.tokenizer is not None:
        files |= encoder_tokenizer_files(model.tokenizer, model.max_tokens)
    files |= checkpoint_writer.metadata_texts(model.metadata)
    checkpoint_writer.write_folder(folder, files, tensors, max_shard_bytes=checkpoint_writer.MAX_SHARD_BYTES)

"""Loading a T5, or its encoder alone, from a folder of ``transformers`` or of ``regard train translate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from regard.models import checkpoint_reader, sequence_files
from regard.models.config_file import ConfigFile, read_json_object
from regard.models.generation_config import (
    GENERATION_CONFIG_FILE,
    note_ignored_fields,
    read_generation_config,
    read_start_id,
)
from regard.models.special_ids import note_missing_special_ids, read_end_ids
from regard.models.t5 import T5
from regard.models.t5_config import T5Config
from regard.models.t5_encoder import T5Encoder
from regard.models.t5_files import TOKENIZER_CONFIG_FILE, has_output
from regard.text import Pooling, Tokenizer
from regard.text.pretrained_subwords import PretrainedSubwords
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.subword_training import FIXED_TOKENS


def load_t5(folder: Path, config: ConfigFile, *, dtype: torch.dtype) -> T5 | T5Encoder:
    """Load the model of ``folder``, whose config.json is ``config``, in eval mode on the CPU.

    Returns a ``T5Encoder`` if the folder has no decoder. A target begins and ends with the tokens of
    generation_config.json, if it names some, and ends with those of config.json as well. Raises CheckpointError for
    files that do not belong together.
    """
    stored = checkpoint_reader.stored_tensors(folder)
    has_decoder = any(name.startswith("decoder.") for name in stored)
    hyperparameters = T5Config.from_hugging_face(config, tied=not has_output(config, stored))
    generation = read_generation_config(folder, hyperparameters.vocabulary) if has_decoder else None
    if generation is not None:
        # Sources end with the first end token, that of config.json; a target ends with any of them.
        ends = dict.fromkeys([*hyperparameters.end_ids, *read_end_ids(generation)])
        start = read_start_id(generation, hyperparameters.start_id)
        hyperparameters = replace(hyperparameters, end_ids=tuple(ends), start_id=start)
    with checkpoint_reader.init_on_meta():
        model = T5(hyperparameters) if has_decoder else T5Encoder(hyperparameters)
    origins, skipped = model.weight_names.origins(stored)
    encoder_prefix = "encoder." if has_decoder else ""
    checkpoint_reader.check_layers(
        hyperparameters.layers, (name.removeprefix(encoder_prefix) for name in origins), "layers"
    )
    if has_decoder:
        checkpoint_reader.check_layers(hyperparameters.decoder_depth, origins, "decoder")
    checkpoint_reader.load_weights(model, origins, dtype)
    model.tokenizer = checkpoint_reader.read_tokenizer(
        folder, pad_id=hyperparameters.pad_id, limit=None, vocabulary=hyperparameters.vocabulary
    )
    if isinstance(model, T5):
        _tie_equal_weights(model)
        model.subwords = _read_subwords(folder, model.tokenizer, model.end_id)
        path = folder / TOKENIZER_CONFIG_FILE
        model.tokenizer_config = read_json_object(path) if path.exists() else None
        path = folder / GENERATION_CONFIG_FILE
        model.generation_config = read_json_object(path) if path.exists() else None
        model.metadata = sequence_files.read_metadata(folder)
    encoder = model.encoder if isinstance(model, T5) else model
    encoder.tokenizer, encoder.pooling = model.tokenizer, Pooling.read(folder)
    notes = note_missing_special_ids(config) + note_missing_special_ids(generation)
    model.notes = notes + checkpoint_reader.loading_notes(folder, skipped) + note_ignored_fields(generation)
    return model.eval()


def _read_subwords(
    folder: Path, tokenizer: Tokenizer | None, end_id: int
) -> tuple[SentenceTokenizer, SentenceTokenizer] | None:
    """The tokenizer of a folder as subwords of sentences: those that regard trained, or of a pretrained model."""
    if tokenizer is None:
        return None
    if tokenizer.has_tokens(FIXED_TOKENS):
        return sequence_files.read_subwords(folder)
    own = PretrainedSubwords(tokenizer, end_id=end_id)
    return own, own


def _tie_equal_weights(model: T5) -> None:
    """Tie the output layer if it has the numbers of the embedding: some files hold a shared matrix twice."""
    if model.config.scale_output and torch.equal(model.output.weight, model.encoder.token_embedding.weight):
        model.config = replace(model.config, tied=True)
        model.tie()

"""What generation_config.json says about the tokens of a text, beside config.json: ``transformers`` writes by it."""

from __future__ import annotations

from collections.abc import Mapping

from regard.models.config_file import ConfigFile
from regard.models.model_folder import ModelFolder

GENERATION_CONFIG_FILE = "generation_config.json"
_IGNORED_FIELDS: Mapping[str, object] = {
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "forced_decoder_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": None,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
}
"""Fields that force, forbid or reweight tokens, which a search of regard does by its own options if at all, and the
values that change nothing."""


def read_generation_config(folder: ModelFolder, vocabulary: int) -> ConfigFile | None:
    """Read the file of a model folder; None if it has none. Ids in it are checked against ``vocabulary``.

    Raises CheckpointError for a damaged file.
    """
    fields = folder.read_json(GENERATION_CONFIG_FILE)
    path = folder.path / GENERATION_CONFIG_FILE
    return None if fields is None else ConfigFile({**fields, "vocab_size": vocabulary}, path)


def read_start_id(config: ConfigFile | None, default: int) -> int:
    """The token that begins a target; ``default`` if the file does not say.

    Raises CheckpointError for an unusable id.
    """
    return default if config is None else config.index("decoder_start_token_id", default=default, below="vocab_size")


def find_ignored_fields(config: ConfigFile | None) -> str | None:
    """A note if the file forces, forbids or reweights tokens."""
    fields = {} if config is None else config.fields
    names = [name for name, neutral in _IGNORED_FIELDS.items() if fields.get(name) not in (None, [], {}, neutral)]
    return f"{config.path}: searches do not apply {', '.join(names)}" if config is not None and names else None

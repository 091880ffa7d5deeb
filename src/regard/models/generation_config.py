"""What generation_config.json says about the tokens of a text, beside config.json: ``transformers`` writes by it."""

from __future__ import annotations

import logging
from pathlib import Path

from regard.models.config_file import ConfigFile, read_json_object

_log = logging.getLogger("regard")

GENERATION_CONFIG_FILE = "generation_config.json"
_IGNORED_FIELDS = (
    "forced_bos_token_id",
    "forced_eos_token_id",
    "forced_decoder_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
)
"""Fields that force or forbid tokens, which no search of regard does."""


def read_generation_config(folder: Path, vocabulary: int) -> ConfigFile | None:
    """Read the file of a model folder; None if it has none. Ids in it are checked against ``vocabulary``.

    Raises CheckpointError for a damaged file.
    """
    path = folder / GENERATION_CONFIG_FILE
    return ConfigFile({**read_json_object(path), "vocab_size": vocabulary}, path) if path.exists() else None


def read_end_ids(config: ConfigFile | None) -> tuple[int, ...]:
    """The tokens that end a text; none if the file does not say. Raises CheckpointError for unusable ids."""
    if config is None or config.fields.get("eos_token_id") is None:
        return ()
    return config.indices("eos_token_id", default=(), below="vocab_size")


def read_start_id(config: ConfigFile | None, default: int) -> int:
    """The token that begins a target; ``default`` if the file does not say.

    Raises CheckpointError for an unusable id.
    """
    return default if config is None else config.index("decoder_start_token_id", default=default, below="vocab_size")


def note_ignored_fields(config: ConfigFile | None) -> tuple[str, ...]:
    """A note if the file forces or forbids tokens; also logged as a warning by the logger "regard"."""
    names = [] if config is None else [name for name in _IGNORED_FIELDS if config.fields.get(name) not in (None, [])]
    if config is None or not names:
        return ()
    note = f"{config.path}: searches do not apply {', '.join(names)}"
    _log.warning(note)
    return (note,)

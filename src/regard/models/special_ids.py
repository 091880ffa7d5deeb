"""The ids of special tokens in the config of a decoder.

A config.json may name tokens that the model lacks: a GPT-2 of 33 tokens keeps the published 50256 for start and end.
Such a model has no such token, which a note says; only what needs the token is refused.
"""

from __future__ import annotations

from typing import Any

from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field

NO_END = -1
"""The ``end_id`` of a model without an end token; no token has this id."""
_FIELDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def special_id_field(text: str, stored: str, *, default: int | None = None, absent: int | None = None) -> Any:
    """A field of a config that is the id of a special token, or None; ``absent`` is the id of a file without it."""
    return model_field(
        default,
        f"{text}; None if there is none",
        stored,
        below="vocabulary",
        read=lambda config, name: read_special_id(config, name, default=absent),
    )


def pad_id_field() -> Any:
    """The field of a config that is the padding token. One outside the vocabulary is 0: masks hide padding anyway."""
    return model_field(
        0,
        "the padding token",
        "pad_token_id",
        below="vocabulary",
        read=lambda config, name: read_special_id(config, name, default=0) or 0,
    )


def end_ids_field(default: tuple[int, ...], *, absent: tuple[int, ...]) -> Any:
    """The field of a config with the ids that end a text; ``absent`` are the ids of a file without them."""
    return model_field(
        default,
        "the tokens that end a text; () if there are none",
        "eos_token_id",
        below="vocabulary",
        example="for example end_ids=(2,), or () for a model without an end token",
        read=lambda config, name: read_end_ids(config, default=absent),
        write=lambda ids: ids[0] if len(ids) == 1 else list(ids) or None,
    )


def read_special_id(config: ConfigFile, field: str, *, default: int | None = None) -> int | None:
    """Read the id of a special token; None if the field is null, or names no token of the vocabulary.

    Raises CheckpointError for anything but an integer.
    """
    if _is_outside(config.fields.get(field, default), config.size("vocab_size")):
        return None
    return config.optional_index(field, default=default, below="vocab_size")


def read_end_ids(config: ConfigFile, *, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Read the ids of the field "eos_token_id", an integer, a list or null, without those outside the vocabulary.

    Raises CheckpointError for anything else.
    """
    field, size = "eos_token_id", config.size("vocab_size")
    value = config.fields.get(field, list(default))
    listed = [value] if isinstance(value, int) else value
    if isinstance(listed, list | tuple):
        listed = [number for number in listed if not _is_outside(number, size)]
    return ConfigFile({**config.fields, field: listed}, config.path).indices(field, default=(), below="vocab_size")


def find_missing_special_ids(config: ConfigFile | None) -> str | None:
    """A note if a file names special tokens outside the vocabulary."""
    if config is None:
        return None
    missing = []
    for field in _FIELDS:
        value = config.fields.get(field)
        listed = value if isinstance(value, list) else [value]
        missing += [f"{field} {number}" for number in listed if _is_outside(number, config.size("vocab_size"))]
    if not missing:
        return None
    size, tokens = config.size("vocab_size"), ", ".join(missing)
    return f"{config.path}: the model has no such token, so it is not used: {tokens} (vocab_size {size})"


def _is_outside(value: object, vocabulary: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < vocabulary

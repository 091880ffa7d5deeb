"""The ids of special tokens in the config of a decoder.

A config.json may name tokens that the model lacks: a GPT-2 of 33 tokens keeps the published 50256 for start and end.
Such a model has no such token, which a note says; only what needs the token is refused.
"""

from __future__ import annotations

import logging

from regard.errors import check_count, check_kind
from regard.models.config_file import ConfigFile

NO_END = -1
"""The ``end_id`` of a model without an end token; no token has this id."""
_FIELDS = ("pad_token_id", "bos_token_id", "eos_token_id")
_log = logging.getLogger("regard")


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
        listed = [one for one in listed if not _is_outside(one, size)]
    return ConfigFile({**config.fields, field: listed}, config.path).indices(field, default=(), below="vocab_size")


def note_missing_special_ids(config: ConfigFile | None) -> tuple[str, ...]:
    """A note if a file names special tokens outside the vocabulary; also logged as a warning."""
    if config is None:
        return ()
    missing = []
    for field in _FIELDS:
        value = config.fields.get(field)
        listed = value if isinstance(value, list) else [value]
        missing += [f"{field} {one}" for one in listed if _is_outside(one, config.size("vocab_size"))]
    if not missing:
        return ()
    note = f"{config.path}: the model has no such token, so it is not used: {', '.join(missing)} "
    note += f"(vocab_size {config.size('vocab_size')})"
    _log.warning(note)
    return (note,)


def check_special_ids(vocabulary: int, *, pad_id: object, start_id: object, end_ids: tuple[int, ...]) -> None:
    """Raise OptionError unless the ids of special tokens are in the vocabulary; None is no such token."""
    for name, number in (("pad_id", pad_id), ("start_id", start_id)):
        if number is not None:
            check_count(name, number, least=0, most=vocabulary - 1)
    check_kind("end_ids", end_ids, tuple, do="for example end_ids=(2,), or () for a model without an end token")
    for number in end_ids:
        check_count("end_ids", number, least=0, most=vocabulary - 1)


def join_end_ids(end_ids: tuple[int, ...]) -> int | list[int] | None:
    """Return the field "eos_token_id" of a config.json: an integer, a list of them, or null."""
    return end_ids[0] if len(end_ids) == 1 else list(end_ids) or None


def _is_outside(value: object, vocabulary: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < vocabulary

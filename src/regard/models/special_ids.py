"""The ids of special tokens in the config of a decoder."""

from __future__ import annotations

from regard.errors import check_count, check_kind

NO_END = -1
"""The ``end_id`` of a model without an end token; no token has this id."""


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

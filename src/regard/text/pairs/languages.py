"""Which language a name means, and which of several names are the source and the target."""

from __future__ import annotations

from collections.abc import Sequence

USUAL_SIDE_NAMES = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("source", "tgt"),
    ("source", "trg"),
    ("src", "target"),
)
"""What fields and columns are called where no language names them."""


def is_kind_of(name: str, language: str) -> bool:
    """Whether a language is the named one, or a kind of it: "en-GB" and "en_GB" are "en"."""
    name, language = _normalize_name(name), _normalize_name(language)
    return name == language or name.startswith(language + "-")


def has_same_primary(name: str, other: str) -> bool:
    """Whether two are kinds of one language, as "en-US" and "en" are."""
    return _normalize_name(name).partition("-")[0] == _normalize_name(other).partition("-")[0]


def find_sides(names: Sequence[str], source: str | None, target: str | None) -> tuple[int, int] | None:
    """Where the source and the target stand among the names of fields or columns; None where these do not say.

    The languages say it, else words such as "source" and "target". One language alone says it of two names.
    """
    first, second = _find_language(names, source), _find_language(names, target)
    if len(names) == 2 and source is None and second is not None:
        first = 1 - second
    if len(names) == 2 and target is None and first is not None:
        second = 1 - first
    if first is not None and second is not None and first != second:
        return first, second
    plain = [_normalize_name(name) for name in names]
    for pair in USUAL_SIDE_NAMES:
        if all(plain.count(word) == 1 for word in pair):
            return plain.index(pair[0]), plain.index(pair[1])
    return None


def _find_language(names: Sequence[str], language: str | None) -> int | None:
    """Where the one name stands that is the language, else the one that is a kind of it."""
    if language is None:
        return None
    exact = [place for place, name in enumerate(names) if _normalize_name(name) == _normalize_name(language)]
    places = exact or [place for place, name in enumerate(names) if is_kind_of(name, language)]
    return places[0] if len(places) == 1 else None


def _normalize_name(name: str) -> str:
    """However it is written: "sr@latin" and "pt_BR" have other marks than "pt-BR"."""
    return name.strip().lower().replace("_", "-").replace("@", "-")

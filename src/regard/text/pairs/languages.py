"""Match names of languages, and find source and target among the names of columns or fields."""

from __future__ import annotations

from collections.abc import Sequence

USUAL_SIDE_NAMES = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("source", "tgt"),
    ("source", "trg"),
    ("src", "target"),
    ("original", "translation"),
)
"""Usual (source, target) names of fields and columns that are not named by language."""

_CODES = frozenset((
    "af", "am", "ar", "as", "az", "be", "bg", "bn", "bs", "ca", "cs", "cy", "da", "de", "el", "en", "eo", "es", "et",
    "eu", "fa", "fi", "fr", "ga", "gl", "gu", "he", "hi", "hr", "ht", "hu", "hy", "id", "is", "it", "ja", "ka", "kk",
    "km", "kn", "ko", "ky", "la", "lb", "lo", "lt", "lv", "mg", "mk", "ml", "mn", "mr", "ms", "mt", "my", "nb", "ne",
    "nl", "nn", "no", "or", "pa", "pl", "ps", "pt", "ro", "ru", "sd", "si", "sk", "sl", "so", "sq", "sr", "sv", "sw",
    "ta", "te", "tg", "th", "tl", "tr", "tt", "ug", "uk", "ur", "uz", "vi", "xh", "yi", "yo", "zh", "zu",
))  # fmt: skip
"""Codes of ISO 639-1 of languages with many sentence pairs."""
_NAMES = {
    "arabic": "ar", "bengali": "bn", "bulgarian": "bg", "catalan": "ca", "chinese": "zh", "croatian": "hr",
    "czech": "cs", "danish": "da", "dutch": "nl", "english": "en", "estonian": "et", "finnish": "fi", "french": "fr",
    "german": "de", "greek": "el", "hebrew": "he", "hindi": "hi", "hungarian": "hu", "icelandic": "is",
    "indonesian": "id", "irish": "ga", "italian": "it", "japanese": "ja", "korean": "ko", "latin": "la",
    "latvian": "lv", "lithuanian": "lt", "malay": "ms", "norwegian": "no", "persian": "fa", "polish": "pl",
    "portuguese": "pt", "romanian": "ro", "russian": "ru", "serbian": "sr", "slovak": "sk", "slovenian": "sl",
    "spanish": "es", "swahili": "sw", "swedish": "sv", "tamil": "ta", "thai": "th", "turkish": "tr",
    "ukrainian": "uk", "urdu": "ur", "vietnamese": "vi", "welsh": "cy",
}  # fmt: skip
"""Codes of languages by their English names."""
_NUMBER_NAMES = ("id", "no")


def is_kind_of(name: str, language: str) -> bool:
    """Whether ``name`` is the language or a variant of it: "en-GB", "en_GB" and "English" are kinds of "en"."""
    name, language = _to_code(name), _to_code(language)
    return name == language or name.startswith(language + "-")


def has_same_primary(name: str, other: str) -> bool:
    """Whether two names share the primary language, as "en-US" and "en" do."""
    return _normalize_name(name).partition("-")[0] == _normalize_name(other).partition("-")[0]


def find_sides(names: Sequence[str], source: str | None, target: str | None) -> tuple[int, int] | None:
    """Find the indices of source and target among the names of fields or columns; None if the names do not tell.

    Names are matched with the languages, else with words such as "source" and "target". With two names, one language
    is enough.
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


def find_two_codes(names: Sequence[str]) -> tuple[int, int] | None:
    """Find the indices of two columns named by codes of different languages; None unless there are just two.

    Beside other columns "id" and "no" are numbers of rows, and not Indonesian and Norwegian.
    """
    plain = [_to_code(name).partition("-")[0] for name in names]
    numbers = _NUMBER_NAMES if len(names) > 2 else ()
    codes = [place for place, name in enumerate(plain) if name in _CODES and name not in numbers]
    return (codes[0], codes[1]) if len(codes) == 2 and plain[codes[0]] != plain[codes[1]] else None


def _find_language(names: Sequence[str], language: str | None) -> int | None:
    """Index of the only name that equals the language, else of its only variant; None if there is none."""
    if language is None:
        return None
    exact = [place for place, name in enumerate(names) if _normalize_name(name) == _normalize_name(language)]
    places = exact or [place for place, name in enumerate(names) if is_kind_of(name, language)]
    return places[0] if len(places) == 1 else None


def _to_code(name: str) -> str:
    """The code of a language by its English name, such as "en" for English; other names in the form of codes."""
    plain = _normalize_name(name)
    return _NAMES.get(plain, plain)


def _normalize_name(name: str) -> str:
    """Normalize case and separators: "pt_BR" becomes "pt-br", "sr@latin" becomes "sr-latin"."""
    return name.strip().lower().replace("_", "-").replace("@", "-")

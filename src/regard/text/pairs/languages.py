"""Match names of languages, and find source and target among the names of columns or fields."""

from __future__ import annotations

import re
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
    "ukrainian": "uk", "urdu": "ur", "vietnamese": "vi", "welsh": "cy", "mandarin": "zh", "farsi": "fa",
    "deutsch": "de", "fran\u00e7ais": "fr", "francais": "fr", "espa\u00f1ol": "es", "espanol": "es", "castellano": "es",
    "italiano": "it", "portugu\u00eas": "pt", "portugues": "pt", "nederlands": "nl", "polski": "pl", "svenska": "sv",
    "norsk": "no", "dansk": "da", "suomi": "fi", "magyar": "hu", "t\u00fcrk\u00e7e": "tr", "\u010de\u0161tina": "cs",
    "rom\u00e2n\u0103": "ro", "hrvatski": "hr", "sloven\u010dina": "sk", "catal\u00e0": "ca",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439": "ru",
    "\u0443\u043a\u0440\u0430\u0457\u043d\u0441\u044c\u043a\u0430": "uk",
    "\u0431\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438": "bg",
    "\u03b5\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac": "el",
    "\u4e2d\u6587": "zh", "\u6c49\u8bed": "zh", "\u65e5\u672c\u8a9e": "ja", "\ud55c\uad6d\uc5b4": "ko",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629": "ar", "\u0641\u0627\u0631\u0633\u06cc": "fa",
    "\u05e2\u05d1\u05e8\u05d9\u05ea": "he", "\u0939\u093f\u0928\u094d\u0926\u0940": "hi", "\u0e44\u0e17\u0e22": "th",
}  # fmt: skip
"""Codes of languages by their names, in English and in the language."""
_WORD = re.compile(r"[^\W_]+")
_CODE_AT_AN_END = re.compile(r"(?:.*[_.:/-])([a-z]{2})|([a-z]{2})[_.:/-].*")
"""A code of two letters at an end of a name, such as text_en or en.text."""
NUMBER_NAMES = ("id", "no")
"""Codes of languages that are names of columns of numbers, too."""


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
    plain = [{_normalize_name(name)} for name in names]
    for words in (plain, [set(_words(name)) for name in names]):
        for pair in USUAL_SIDE_NAMES:
            places = [[place for place, named in enumerate(words) if word in named] for word in pair]
            if len(places[0]) == len(places[1]) == 1 and places[0] != places[1]:
                return places[0][0], places[1][0]
    return None


def find_code(name: str) -> str | None:
    """The code of the language that a column's name has: "en" of "en-GB", "English sentence" or "text_en"; else None.

    Inside of a name a code of two letters counts at an end only: "no" and "is" are words, too.
    """
    code = _to_code(name).partition("-")[0]
    if code in _CODES:
        return code
    known = {_NAMES[word] for word in _words(name) if word in _NAMES}
    if len(known) == 1:
        return known.pop()
    end = None if known else _CODE_AT_AN_END.fullmatch(name.strip().lower())
    found = None if end is None else end[1] or end[2]
    return found if found in _CODES else None


def find_two_codes(names: Sequence[str]) -> tuple[int, int] | None:
    """Find the indices of two columns named by different languages; None unless there are just two.

    Beside other columns "id" and "no" are numbers of rows, and not Indonesian and Norwegian.
    """
    found = [find_code(name) for name in names]
    numbers = NUMBER_NAMES if len(names) > 2 else ()
    codes = [
        place for place, code in enumerate(found) if code is not None and _normalize_name(names[place]) not in numbers
    ]
    return (codes[0], codes[1]) if len(codes) == 2 and found[codes[0]] != found[codes[1]] else None


def _find_language(names: Sequence[str], language: str | None) -> int | None:
    """Index of the only name that is the language, else of its variant, else that has it; None if there is none."""
    if language is None:
        return None
    exact = [place for place, name in enumerate(names) if _normalize_name(name) == _normalize_name(language)]
    places = exact or [place for place, name in enumerate(names) if is_kind_of(name, language)]
    places = places or [place for place, name in enumerate(names) if has_language(name, language)]
    return places[0] if len(places) == 1 else None


def has_language(name: str, language: str) -> bool:
    """Whether a column's name is the language or has it as a part: "English sentence" and "text_en" have "en"."""
    code = find_code(name)
    return is_kind_of(name, language) or _normalize_name(language) in _words(name) or code == _to_code(language)


def _words(name: str) -> list[str]:
    """Words of a name in lower case: "sourceText" and "source_text" have two."""
    return [word.lower() for word in _WORD.findall(re.sub(r"([a-z])([A-Z])", r"\1 \2", name))]


def _to_code(name: str) -> str:
    """The code of a language by its name, such as "en" for English; other names in the form of codes."""
    plain = _normalize_name(name)
    return _NAMES.get(plain, plain)


def _normalize_name(name: str) -> str:
    """Normalize case and separators: "pt_BR" becomes "pt-br", "sr@latin" becomes "sr-latin"."""
    return name.strip().lower().replace("_", "-").replace("@", "-")

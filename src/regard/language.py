"""The language of what a reader sees: pages, the terminal view, help and messages, in English or Chinese.

The English stands in the code. The catalogue of a language (``translations/zh/*.json``) maps English templates to its
own. Code that makes a text for a reader calls ``translate``:

    translate("{head} looks at {token}", head="Head 3.1", token=word)

Exceptions stay English, so that they can be searched; where the command line prints one, ``translate_message`` finds
the templates that the finished sentence was made from. Their values are numbered: ``"wrong {0}"``.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import TypeAlias, final

LANGUAGES = ("en", "zh")
"""English and simplified Chinese."""
HTML_LANGUAGES = {"en": "en", "zh": "zh-CN"}
"""The value of ``lang`` in HTML, by language."""
PARTS = ("page", "view", "help", "messages")
"""The files of a catalogue."""
_PARTS_OF_VIEWS = ("messages", "help", "page", "view")
_PARTS_OF_MESSAGES = ("view", "help", "messages")
"""The files that are read; where two have the same English, the last one counts: ``pair`` has a meaning in each."""

_language: ContextVar[str | None] = ContextVar("language", default=None)
_own_words: ContextVar[frozenset[str]] = ContextVar("own_words", default=frozenset())


def language_in_use() -> str:
    """The language of the innermost ``use_language``; else that of the environment."""
    return _language.get() or language_of_environment()


def check_language(name: str | None) -> None:
    """Raise OptionError unless it is None or one of ``LANGUAGES``."""
    if name is not None and name not in LANGUAGES:
        from regard.errors import unknown_name_error

        raise unknown_name_error("language", name, LANGUAGES)


@contextmanager
def use_language(name: str | None, *, own_words: Iterable[str] = ()) -> Iterator[None]:
    """Use the language ``name`` inside the block; None is the one in use.

    ``own_words`` are the user's, which stay as they are: a folder may have the name "model".
    """
    check_language(name)
    token = _language.set(language_in_use() if name is None else name)
    words = _own_words.set(_own_words.get() | frozenset(own_words))
    try:
        yield
    finally:
        _language.reset(token)
        _own_words.reset(words)


def language_of_environment() -> str:
    """The first language that the environment names, as gettext reads it: ``LANGUAGE=zh_CN:en`` is Chinese."""
    for variable in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        if os.environ.get(variable):
            return "zh" if os.environ[variable].lower().startswith("zh") else "en"
    return "en"


def translate(template: str, **values: object) -> str:
    """The template in the language in use, with the values in its ``{name}`` places.

    A template without values is returned as it stands, with its braces.
    """
    language = language_in_use()
    if language != "en":
        template = read_catalogue(language, _PARTS_OF_VIEWS).get(template) or template
    return template.format(**values) if values else template


def count_noun(count: int, noun: str, plural: str = "") -> str:
    """``count_noun(1, "hidden token")`` is "1 hidden token"; 2,048 of them are "2,048 hidden tokens". English.

    ``plural`` is for nouns with a verb: ``count_noun(texts, "text has", "texts have")``.
    """
    return f"1 {noun}" if count == 1 else f"{count:,} {plural or plural_of(noun)}"


def plural_of(noun: str) -> str:
    """The English plural of a noun, or of words that end with it."""
    return re.sub(r"(?<![aeiou])y$", "ie", noun) + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def abbreviate_names(names: Sequence[str], limit: int = 6, *, count: int | None = None) -> str:
    """Join the first names, and say how many more there are. English. ``count`` is of all, if ``names`` lacks some."""
    more = (len(names) if count is None else count) - min(len(names), limit)
    listed = ", ".join(names[:limit])
    return f"{listed} and {more:,} more" if more else listed


def translate_count(count: int, noun: str) -> str:
    """The same in the language in use."""
    return translate_message(count_noun(count, noun))


def translate_label(label: str, value: str) -> str:
    """A label in the language in use before a value that stays, such as a user's text or names of arguments."""
    return translate("{name}: ", name=translate_message(label)) + value


def join_sentences(sentences: Iterable[str]) -> str:
    """The sentences behind one another, those that are not empty: Chinese has no space between them."""
    return ("" if language_in_use() == "zh" else " ").join(filter(None, sentences))


def translate_message(text: str, *, is_value: bool = False) -> str:
    """A finished English sentence in the language in use; unchanged if the catalogue has no template for it.

    ``is_value`` is for a text that may be the user's own, such as a path: a template of few letters does not count.
    """
    reader = language_in_use(), _own_words.get()
    return text if reader[0] == "en" or not text else _translate_message(reader, text, is_value=is_value)


@cache
def read_catalogue(language: str, parts: tuple[str, ...]) -> Mapping[str, str]:
    """The templates of a language, by the English ones."""
    import json
    from importlib import resources

    folder = resources.files("regard") / "translations" / language
    catalogue: dict[str, str] = {}
    for part in parts:
        catalogue |= json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
    return catalogue


_HOLE = re.compile(r"\{(\w+)\}|`[^`\n]*`")
"""A value of a template, or a marked argument, whose name may have been replaced (``errors.renamed_arguments``)."""
_LEAST_LETTERS_AROUND_VALUES = 6
"""Letters of a template that is applied to values: "a {0}" would fit the user's own words."""
_MOST_FITTING = 8
"""Templates that are tried for a sentence."""
_COUNT = re.compile(r"([\d.,]+) (\w+)")
_COUNTED_NOUN = re.compile(r"^ (?:\w+ ){0,2}?[a-z]{2,}?(ies|es|s)\b")
"""The first plural behind a value: ``count_noun`` makes a singular of it for one."""
_SMALL_WORDS = {"a", "an", "and", "at", "by", "for", "from", "has", "in", "is", "of", "on", "or", "to", "was", "with"}
_MOST_WORDS_BETWEEN_SMALL_ONES = 8
"""Words of a text to which a template of small words alone is applied: "{0} of {1}" would fit half of all sentences."""


@final
class _Pattern:
    """The sentences that may be made from a template."""

    def __init__(self, template: str) -> None:
        self.literals = _HOLE.split(template)[::2]
        self.holes = [hole[0] for hole in _HOLE.finditer(template)]
        self.longest = max((part for literal in self.literals for part in _cut_ending(literal)), key=len)
        self.size = sum(character.isalpha() for literal in self.literals for character in literal)
        self.is_small = _SMALL_WORDS.issuperset(re.findall(r"\w+", " ".join(self.literals)))
        self._regex: re.Pattern[str] | None = None

    def match(self, text: str) -> dict[str, str] | None:
        """The values in ``text``, by hole; None if it does not fit."""
        if self.longest not in text or (self.is_small and text.count(" ") >= _MOST_WORDS_BETWEEN_SMALL_ONES):
            return None
        if self._regex is None:  # made late: few of some thousand templates get as far
            holes = [r"(`[^`\n]*`)" if hole.startswith("`") else "(.+?)" for hole in self.holes]
            for number, before in enumerate(self.literals[:-1]):
                if number and before == " ":  # a quoted name after the words for it, or several words
                    holes[number] = r"('[^']*'|\"[^\"]*\"|(?!.*['\"]).+?)"
                elif number and not before and not holes[number].startswith("(`"):
                    holes[number - 1 : number + 1] = ["(.+)", "(.*?)"]
            if holes and not self.literals[-1] and not holes[-1].startswith("(`"):
                holes[-1] = holes[-1].replace(".+?", ".*?")
            literals = [re.escape(self.literals[0]), *map(_with_singular, self.literals[1:])]
            parts = [part for pair in zip(literals, [*holes, ""], strict=True) for part in pair]
            self._regex = re.compile("".join(parts))
        found = self._regex.fullmatch(text)
        return None if found is None else dict(zip(self.holes, found.groups(), strict=True))


def _cut_ending(literal: str) -> tuple[str, str, str]:
    """The text before the ending of a counted noun, the ending, and the text behind it."""
    found = _COUNTED_NOUN.match(literal)
    return (literal, "", "") if found is None else (literal[: found.start(1)], found[1], literal[found.end(1) :])


def _with_singular(literal: str) -> str:
    """A regular expression for the text behind a value, in which a counted noun may be a singular."""
    before, ending, behind = _cut_ending(literal)
    either = {"": "", "s": "s?", "es": "(?:es?)?", "ies": "(?:ies?|y)"}[ending]
    return re.escape(before) + either + re.escape(behind)


@cache
def _patterns(language: str) -> list[tuple[_Pattern, str]]:
    """Templates with holes and their translations, those with the most literal text first."""
    catalogue = read_catalogue(language, _PARTS_OF_MESSAGES)
    patterns = [
        (_Pattern(template), translation)
        for template, translation in catalogue.items()
        if translation and re.search(r"\{\d+\}|`", template) and not _COUNT.fullmatch(template.replace("{0}", "1"))
    ]
    fitting = (each for each in patterns if each[0].longest.strip())
    return sorted(fitting, key=lambda each: (-each[0].size, -sum(map(len, each[0].literals))))


_FOREIGN = re.compile(r"(?<=\()[A-Z]\w*(?:Error|Exception|Warning): .*(?=\))|\b[A-Z]\w*(?:Error|Exception|Warning): .*")
"""The message of another library with its class, up to the end of the brackets around it, or of the text."""
_HELD_PLACE = "\ufffc"
_Reader: TypeAlias = tuple[str, frozenset[str]]
"""A language, and the words that are the user's own."""


@lru_cache(maxsize=10_000)
def _translate_message(reader: _Reader, text: str, *, is_value: bool) -> str:
    language, own_words = reader
    if text in own_words:
        return text
    if foreign := _FOREIGN.search(text):
        held = text[: foreign.start()] + _HELD_PLACE + text[foreign.end() :]
        return _translate_message(reader, held, is_value=is_value).replace(_HELD_PLACE, foreign[0])
    catalogue, count = read_catalogue(language, _PARTS_OF_MESSAGES), _COUNT.fullmatch(text)
    if catalogue.get(text):
        return catalogue[text]
    if count is not None:
        templates = (f"{{0}} {count[2]}", f"{{0}} {plural_of(count[2])}")
        if translated := catalogue.get(templates[0]) or catalogue.get(templates[1]):
            return translated.replace("{0}", count[1])
    found: list[tuple[str, bool]] = []
    for pattern, translation in _patterns(language):
        if len(found) > _MOST_FITTING or (is_value and pattern.size < _LEAST_LETTERS_AROUND_VALUES):
            break
        values = pattern.match(text)
        if values is not None:
            *inner, (last, end) = [*values.items()] or [("", "")]
            splits_clauses = any(sign in value for _, value in inner for sign in _JOINTS)
            splits_clauses |= any(sign in end for sign in ("; ", ", ")) and not translation.endswith(last)
            found.append((_fill(reader, translation, values), splits_clauses))
    if "\n" in text:
        lines = [_translate_message(reader, line, is_value=is_value) for line in text.split("\n")]
        found.append(("\n".join(lines), False))
    else:
        found.append((_translate_parts(reader, text, is_value=is_value), False))
    return min((each for each in found if each[0]), key=_count_english, default=(text, False))[0]


def _count_english(found: tuple[str, bool]) -> tuple[int, bool]:
    """The words of Latin letters in a translation: of several, the one with the fewest is the best understood."""
    return len(re.findall(r"[A-Za-z]{2,}", found[0])), found[1]


_MOST_COMMAS = 5
_JOINTS = {"; ": "；", ": ": "：", ", ": "，"}
"""Signs between clauses that were made apart from each other, and their Chinese."""


def _translate_parts(reader: _Reader, text: str, *, is_value: bool) -> str:
    """The translation of clauses that are joined; "" if the catalogue lacks one of them, or both beside a colon."""
    for sign, joint in _JOINTS.items():
        parts = text.split(sign, 1 if sign == ": " else -1)
        if len(parts) > 1 and not (is_value and sign == ": "):
            translated = [_translate_message(reader, part, is_value=is_value or sign == ", ") for part in parts]
            unchanged = [part for part, own in zip(parts, translated, strict=True) if part == own]
            is_name = len(unchanged) == 1 and unchanged[0].count(" ") <= 1
            if not unchanged or (sign == ": " and len(unchanged) == 1):  # before a colon is often a path
                return joint.join(translated)
            if sign == ", " and len(parts) > 2 and is_name:  # a list that begins with the name of a model
                return joint.join(translated)
    return _translate_halves(reader, text)


def _translate_halves(reader: _Reader, text: str) -> str:
    """The translation of two phrases beside a comma, one of which has commas of its own; "" if there are none."""
    parts = text.split(", ")
    for place in range(1, len(parts)) if 2 < len(parts) <= _MOST_COMMAS else ():
        halves = [", ".join(parts[:place]), ", ".join(parts[place:])]
        translated = [_translate_message(reader, half, is_value=True) for half in halves]
        if all(half != own for half, own in zip(halves, translated, strict=True)):
            return "，".join(translated)
    return ""


def _fill(reader: _Reader, translation: str, values: Mapping[str, str]) -> str:
    """The translation with its values, each translated if the catalogue has it; marked arguments stay."""

    def fill(hole: re.Match[str]) -> str:
        value = values.get(hole[0], hole[0])
        return value if hole[0].startswith("`") else _translate_message(reader, value, is_value=True)

    places = [*_HOLE.finditer(translation)]
    between = zip([0, *(place.end() for place in places)], [*(place.start() for place in places), None], strict=True)
    literals = [translation[start:end] for start, end in between]
    return _join_chinese([literals[0], *itertools.chain(*zip(map(fill, places), literals[1:], strict=True))])


_HAN = re.compile(r"[\u3400-\u9fff]")
_FULL_WIDTH = re.compile(r"[\u3000-\u303f\uff00-\uffef“”]")
_LATIN = re.compile(r"[A-Za-z0-9]")


def _join_chinese(parts: Sequence[str]) -> str:
    """Join parts with a space between Chinese and Latin characters, and none between Chinese ones."""
    text = ""
    for part in parts:
        before, after = text.rstrip(" "), part.lstrip(" ")
        ends, begins = before[-1:], after[:1]
        if (
            (_HAN.match(ends) and _HAN.match(begins))
            or (begins and _FULL_WIDTH.match(ends))
            or _FULL_WIDTH.match(begins)
        ):
            text = before + after
        elif (_HAN.match(ends) and _LATIN.match(begins)) or (_LATIN.match(ends) and _HAN.match(begins)):
            text = f"{before} {after}"
        else:
            text += part
    return text

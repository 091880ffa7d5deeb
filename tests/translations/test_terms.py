"""Each string uses the agreed Chinese words: those of ``docs/zh-terms.md``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from translations.catalogue_files import STRINGS, read_part

PAGE = Path(__file__).resolve().parents[2] / "docs" / "zh-terms.md"
CODE = re.compile(
    r"`[^`]*`|'[^']*'|\"[^\"]*\"|<[^>]*>|--[\w-]+|https?://\S+"  # quotes, tags and options
    r"|[\w.]*[_.(=\[/]\w[\w.=()\[\]{}:/]*"  # names of code, calls and paths
    r"|\b\w+=|\{\w*\}|[A-Z]{3,}|regard \w+ \w+"
)
"""What has no translation in a string: code, names and values."""
_ROW_OF_WORDS = "words in a row are 连续"
EXCEPTIONS = {
    ("state", "Over all heads: <b>mass kept</b>"): "the cost that the catalogue states",
    ("key", "a goal that can be reached by walking, taking keys"): "a key of a door",
    ("row", "no held-out target has four words in a row"): _ROW_OF_WORDS,
    ("row", "no reference has four words in a row"): _ROW_OF_WORDS,
}
"""Terms and the beginnings of strings in which they have another sense, and which."""


@cache
def _terms() -> dict[str, tuple[str, ...]]:
    """The Chinese words of each term."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]*\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {english: tuple(chinese.split("、")) for english, chinese in rows if english != "English"}


def _broken(english: str, chinese: str) -> list[str]:
    """The terms of the English whose word the Chinese lacks, unless it has the English word itself, as a name."""
    prose, code = CODE.sub(" ", english).lower(), chinese.lower()
    return [
        term
        for term, words in _terms().items()
        if re.search(rf"(?<![\w-]){re.escape(term.lower())}(?:s|es)?(?![\w-])", prose)
        and not any(word in chinese for word in words)
        and term.lower() not in code
    ]


def test_strings_use_the_agreed_words() -> None:
    assert len(_terms()) > 100
    broken = {
        (term, english): chinese
        for part in STRINGS
        for english, chinese in read_part(part).items()
        for term in _broken(english, chinese)
    }
    excepted = {
        (term, english)
        for term, english in broken
        for known, beginning in EXCEPTIONS
        if term == known and english.startswith(beginning)
    }
    assert {key: broken[key] for key in broken.keys() - excepted} == {}, "use the words of docs/zh-terms.md"
    assert len(excepted) == len(EXCEPTIONS), "an exception is no longer one"


def test_a_wrong_word_is_found() -> None:
    assert _broken("the head reads a token", "注意力头读取一个标记") == ["token"]
    assert _broken("build it with `token`", "用 `token` 构建它") == []


def test_terms_are_listed_once_under_each_heading_in_one_table() -> None:
    english = re.findall(r"^\| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    terms = [term for term in english if term != "English"]
    assert len(terms) == len(set(terms))

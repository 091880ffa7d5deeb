"""Chinese words: the script has no spaces, so they are those of jieba, single characters, or those that a reader types.

    我吃了一个苹果。        jieba: 我 / 吃 / 了 / 一个 / 苹果    characters: 我 / 吃 / 了 / 一 / 个 / 苹 / 果
    我 吃了 一个 苹果 。    spaces: 我 / 吃了 / 一个 / 苹果

jieba is asked for whole texts, since a word depends on those around it, and its dictionary is read from its package:
its cache in the folder of temporary files, which others may write to, is not used.
"""

from __future__ import annotations

import unicodedata
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

from regard.errors import MissingPackageError, check_choice
from regard.language import translate

ChineseWords: TypeAlias = Literal["jieba", "characters", "spaces"]
"""Separators of Chinese words."""
CHINESE_WORDS: tuple[str, ...] = get_args(ChineseWords)
_IDEOGRAPHS = ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH")


def check_chinese_words(chosen: ChineseWords | None) -> None:
    """Raise OptionError for an unknown way to separate words, MissingPackageError for "jieba" without it."""
    if chosen is not None:
        check_choice("chinese_words", chosen, CHINESE_WORDS)
    if chosen == "jieba" and not _has_jieba():
        raise MissingPackageError(
            "Chinese words are grouped by a package",
            expected="jieba",
            got="it is not installed",
            do="pip install 'regard[zh]'",
        )


def _separator_of(text: str, chosen: ChineseWords | None) -> ChineseWords:
    """The separator of words: the choice, else jieba where it is installed and the text is not Japanese."""
    return chosen or ("jieba" if _has_jieba() and not _is_japanese(text) else "characters")


def starts_of_words(text: str, chosen: ChineseWords | None) -> frozenset[int]:
    """The places of a text where a word begins after an ideograph."""
    return _find_starts(text, _separator_of(text, chosen))


@lru_cache(maxsize=64)
def _find_starts(text: str, separator: ChineseWords) -> frozenset[int]:
    if separator == "spaces" or not any(map(is_ideograph, text)):
        return frozenset()
    if separator == "characters":
        return frozenset(range(len(text)))
    return frozenset(start for _, start, _ in _jieba().tokenize(text))


def describe_separator(text: str, chosen: ChineseWords | None) -> str:
    """A sentence about the Chinese words of a text; "" for a text without any."""
    if not any(map(is_ideograph, text)):
        return ""
    separator = _separator_of(text, chosen)
    if separator == "jieba":
        return translate("Chinese words are those that jieba finds.")
    if separator == "spaces":
        return translate("Chinese words are those that spaces separate in the text.")
    if chosen is None and not _has_jieba():
        return translate("Each Chinese character is a word: jieba, which finds words, is not installed.")
    return translate("Each Chinese character is a word.")


def is_ideograph(character: str) -> bool:
    """Whether a character is Chinese."""
    return unicodedata.name(character, "").startswith(_IDEOGRAPHS)


def _is_japanese(text: str) -> bool:
    return any(unicodedata.name(character, "").startswith(("HIRAGANA", "KATAKANA")) for character in text)


def _has_jieba() -> bool:
    return find_spec("jieba") is not None


@cache
def _jieba() -> Any:
    """jieba's tokenizer with its own dictionary."""
    import jieba

    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer

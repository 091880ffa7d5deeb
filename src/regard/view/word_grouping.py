"""The choice of what Chinese words are, for readings whose words are found when they are shown."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

from regard.arguments import explain_arguments
from regard.chinese_words import ChineseWords, check_chinese_words
from regard.errors import check_kind
from regard.view.reading import PairReading, Reading, Tokens
from regard.view.side_by_side import SideBySide

_Grouped = TypeVar("_Grouped")


@explain_arguments
def group_chinese_words(reading: _Grouped, chinese_words: ChineseWords | None) -> _Grouped:
    """The reading with Chinese words as "jieba" finds them, as "characters", or as "spaces" of the text separate them.

    None is jieba where it is installed, else characters. The reading is one of a text or a translation, or of a text
    under several mechanisms. Raises OptionError for another choice, MissingPackageError for "jieba" without it.
    """
    check_chinese_words(chinese_words)
    check_kind("reading", reading, (Reading, PairReading, SideBySide), do="group the readings before they are compared")
    return _group(reading, chinese_words)


def _group(reading: _Grouped, chosen: ChineseWords | None) -> _Grouped:
    if isinstance(reading, Tokens):
        return replace(reading, chinese_words=chosen)
    parts = {field.name: getattr(reading, field.name) for field in fields(reading)}  # type: ignore[arg-type]
    of_texts = {name: part for name, part in parts.items() if isinstance(part, Tokens | Reading | PairReading)}
    return replace(reading, **{name: _group(part, chosen) for name, part in of_texts.items()})  # type: ignore[type-var]

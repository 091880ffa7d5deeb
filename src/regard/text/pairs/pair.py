"""Sentence pairs, and entries without a usable one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias, final

from regard.text.line import LINE_SEPARATORS
from regard.text.skip_counts import Skipped

_SEPARATOR_RUN = re.compile(f"[{LINE_SEPARATORS}]+")


@final
@dataclass(frozen=True)
class Pair:
    """A sentence and its translation, each without line breaks; ``place`` says where they were read, for messages."""

    source: str
    target: str
    place: str


PairOrSkipped: TypeAlias = Pair | Skipped


def make_pair(source: str, target: str, place: str) -> PairOrSkipped:
    """Make a pair, with line breaks and tabs replaced by spaces; a ``Skipped`` if a side is empty."""
    source, target = (_SEPARATOR_RUN.sub(" ", text).strip() for text in (source, target))
    if source and target:
        return Pair(source, target, place)
    subject = "both sides are" if not (source or target) else "the source is" if not source else "the target is"
    return Skipped(place, f"{subject} empty")

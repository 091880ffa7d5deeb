"""Subwords for pairs of sentences: for each language its own, or joint where the two share most letters.

    joint    if at least half of the letters of the targets, each counted as often as it stands there, occur in sources

Sennrich et al. 2016, "Neural machine translation of rare words with subword units", section 3.2: joint subwords cut
names and loan words alike on both sides.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import TypeAlias

from regard.errors import check_choice
from regard.tasks.translation.presets import choose_vocab_size
from regard.tasks.translation.recipe import TranslationRecipe
from regard.text.placeholders import ProtectedPair
from regard.text.subword_training import min_vocab_size
from regard.text.subwords import Subwords

SHARING = ("auto", "joint", "separate")
_JOINT_THRESHOLD = 0.5

SubwordPair: TypeAlias = tuple[Subwords, Subwords]
"""Of the source and of the target."""


def new_subwords(recipe: TranslationRecipe, pairs: Sequence[ProtectedPair], say: Callable[[str], None]) -> SubwordPair:
    """The subwords of source and target, one and the same where they are joint. Raises OptionError as ``Subwords``."""
    sharing, algorithm = recipe.sharing or "auto", recipe.algorithm or "bpe"
    check_choice("way of sharing subwords", sharing, SHARING)
    sides = [[one.source for one in pairs], [one.target for one in pairs]]
    joint = sharing == "joint" or (sharing == "auto" and _share_letters(*sides))
    groups = [sides[0] + sides[1]] if joint else sides
    found = [
        Subwords.train(texts, size=recipe.vocabulary or _choose_subword_count(texts, len(pairs)), algorithm=algorithm)
        for texts in groups
    ]
    say(
        f"{found[0].vocabulary:,} subwords for both languages"
        if joint
        else f"{found[0].vocabulary:,} subwords for the source, {found[1].vocabulary:,} for the target"
    )
    return found[0], found[-1]


def _choose_subword_count(texts: Sequence[str], pairs: int) -> int:
    """Subwords for so many pairs; more where characters alone, as of Chinese, take most of them."""
    size = choose_vocab_size(pairs)
    return max(size, min_vocab_size(texts) + size // 2)


def _share_letters(sources: Sequence[str], targets: Sequence[str]) -> bool:
    """Whether most letters of the target occur in the source, as those of German do in English."""
    source, target = (_count_letters(texts) for texts in (sources, targets))
    shared = sum(count for letter, count in target.items() if letter in source)
    return shared >= _JOINT_THRESHOLD * sum(target.values())


def _count_letters(texts: Sequence[str]) -> dict[str, int]:
    """How often each letter occurs in some thousands of texts."""
    counts: dict[str, int] = {}
    for text in texts[:: max(1, len(texts) // 5000)]:
        for letter in text.lower():
            if unicodedata.category(letter).startswith("L"):
                counts[letter] = counts.get(letter, 0) + 1
    return counts

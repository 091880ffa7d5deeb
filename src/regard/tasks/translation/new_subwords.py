"""Subwords for sentence pairs: a vocabulary for each language, or a joint one if the two share most letters.

    joint    if at least half of the letters in the targets, counted with repetition, occur in the sources

Sennrich et al. 2016, "Neural machine translation of rare words with subword units", section 3.2: joint subwords split
names and loan words in the same way on both sides.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import TypeAlias

from regard.errors import check_choice
from regard.tasks.translation.presets import choose_vocab_size
from regard.tasks.translation.recipe import T5_MODEL, TranslationRecipe
from regard.text.placeholders import ProtectedPair
from regard.text.subword_training import min_vocab_size
from regard.text.subwords import Subwords

SHARING = ("auto", "joint", "separate")
_JOINT_THRESHOLD = 0.5

SubwordPair: TypeAlias = tuple[Subwords, Subwords]
"""The subwords of the source and of the target."""


def new_subwords(recipe: TranslationRecipe, pairs: Sequence[ProtectedPair], say: Callable[[str], None]) -> SubwordPair:
    """Train the subwords of source and target; joint ones are the same object. Raises OptionError as ``Subwords``."""
    sharing, algorithm = recipe.sharing or "auto", recipe.algorithm or "bpe"
    check_choice("way of sharing subwords", sharing, SHARING)
    sides = [[one.source for one in pairs], [one.target for one in pairs]]
    joint = sharing == "joint" or recipe.model == T5_MODEL or (sharing == "auto" and _share_letters(*sides))
    groups = [sides[0] + sides[1]] if joint else sides
    trained = [
        Subwords.train(texts, size=recipe.vocabulary or _choose_subword_count(texts, len(pairs)), algorithm=algorithm)
        for texts in groups
    ]
    say(
        f"{trained[0].vocabulary:,} subwords for both languages"
        if joint
        else f"{trained[0].vocabulary:,} subwords for the source, {trained[1].vocabulary:,} for the target"
    )
    return trained[0], trained[-1]


def _choose_subword_count(texts: Sequence[str], pairs: int) -> int:
    """Choose the number of subwords by the number of pairs; more if characters need most of them, as in Chinese."""
    size = choose_vocab_size(pairs)
    return max(size, min_vocab_size(texts) + size // 2)


def _share_letters(sources: Sequence[str], targets: Sequence[str]) -> bool:
    """Whether at least half of the target's letters occur in the source, as for German and English."""
    source, target = (_count_letters(texts) for texts in (sources, targets))
    shared = sum(count for letter, count in target.items() if letter in source)
    return shared >= _JOINT_THRESHOLD * sum(target.values())


def _count_letters(texts: Sequence[str]) -> dict[str, int]:
    """Count each letter in a sample of some thousands of texts."""
    counts: dict[str, int] = {}
    for text in texts[:: max(1, len(texts) // 5000)]:
        for letter in text.lower():
            if unicodedata.category(letter).startswith("L"):
                counts[letter] = counts.get(letter, 0) + 1
    return counts

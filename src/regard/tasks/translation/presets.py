"""Which model for how many pairs.

    tiny    4 + 4 layers of 128     thousands of pairs: Wu et al. 2021, "Good for misconceived reasons", table 2
    small   3 + 3 layers of 256     up to half a million
    base    6 + 6 layers of 512     millions: Vaswani et al. 2017, table 3
    big     6 + 6 layers of 1,024   tens of millions

Araabi and Monz 2020, "Optimizing Transformer for low-resource NMT": with few pairs, few layers, a small vocabulary and
much dropout. Nguyen and Salazar 2019, "Transformers without tears": with few pairs, norms before the sublayers. Behind
them, as published in 2017, a model of some thousands of pairs does not learn to look at its source for many epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.errors import check_choice


@final
@dataclass(frozen=True)
class Size:
    """The numbers of a model and of its training that go with an amount of data."""

    name: str
    width: int
    layers: int
    heads: int
    inner: int
    dropout: float
    peak: float
    warmup: int
    tokens: int
    attention_dropout: float = 0.0
    inner_dropout: float = 0.0
    norm: str = "post"


SIZES = {
    size.name: size
    for size in (
        Size(
            "tiny",
            width=128,
            layers=4,
            heads=4,
            inner=256,
            dropout=0.3,
            peak=2e-3,
            warmup=500,
            tokens=2048,
            norm="pre",
        ),
        Size(
            "small",
            width=256,
            layers=3,
            heads=8,
            inner=1024,
            dropout=0.3,
            peak=1.5e-3,
            warmup=500,
            tokens=4096,
            attention_dropout=0.3,
            inner_dropout=0.3,
        ),
        Size("base", width=512, layers=6, heads=8, inner=2048, dropout=0.1, peak=7e-4, warmup=4000, tokens=8192),
        Size("big", width=1024, layers=6, heads=16, inner=4096, dropout=0.3, peak=5e-4, warmup=4000, tokens=8192),
    )
}

_SIZE_LIMITS = ((20_000, "tiny"), (500_000, "small"))
_VOCABULARY_LIMITS = ((5_000, 2_000), (20_000, 4_000), (200_000, 8_000), (1_000_000, 16_000))
_FEW_PAIRS = 10_000
"""Pairs below which a translator from nothing is not to be expected: Koehn and Knowles 2017, section 3.2."""


def choose_size(pairs: int, name: str | None = None) -> Size:
    """The size of that name, or the one for so many pairs. Raises OptionError for an unknown name."""
    if name is None:
        name = next((size for most, size in _SIZE_LIMITS if pairs < most), "base")
    check_choice("size of a model", name, SIZES)
    return SIZES[name]


def choose_vocab_size(pairs: int) -> int:
    """How many subwords for so many pairs."""
    return next((vocabulary for most, vocabulary in _VOCABULARY_LIMITS if pairs < most), 32_000)


def few_pairs_warning(pairs: int) -> str | None:
    """What is to be said of too few pairs."""
    if pairs >= _FEW_PAIRS:
        return None
    if pairs < 1000:
        return f"{pairs:,} pairs will not make a translator: it will learn them by heart. Tens of thousands are needed."
    return f"{pairs:,} pairs are few: expect a translator of texts much like these, and of nothing else."

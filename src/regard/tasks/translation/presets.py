"""Model sizes and training hyperparameters, chosen by the number of pairs.

    tiny    4 + 4 layers of 128     thousands of pairs: Wu et al. 2021, "Good for misconceived reasons", table 2
    small   3 + 3 layers of 256     up to half a million
    base    6 + 6 layers of 512     millions: Vaswani et al. 2017, table 3
    big     6 + 6 layers of 1,024   tens of millions

Araabi and Monz 2020, "Optimizing Transformer for low-resource NMT": with few pairs, few layers, a small vocabulary and
much dropout. Nguyen and Salazar 2019, "Transformers without tears": with few pairs, norms before the sublayers. With
norms after them, as published in 2017, a model of some thousands of pairs needs many epochs to learn to attend to its
source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.errors import check_choice


@final
@dataclass(frozen=True)
class Size:
    """A preset: the hyperparameters of a model and of its training for an amount of data."""

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
FINE_TUNING_PEAK, FINE_TUNING_WARMUP = 3e-4, 100
"""Learning rate and warm-up for a pretrained T5. Raffel et al. 2020, section 3.1.3, have a constant rate of 1e-3 for
Adafactor, whose steps are relative to the size of the weights; Adam's need a lower one."""
_FEW_PAIRS = 10_000
"""Training from scratch with fewer pairs does not give a useful translator: Koehn and Knowles 2017, section 3.2."""


def choose_size(pairs: int, name: str | None = None) -> Size:
    """Return the preset ``name``, or the one for this number of pairs. Raises OptionError for an unknown name."""
    if name is None:
        name = next((size for most, size in _SIZE_LIMITS if pairs < most), "base")
    check_choice("model size", name, SIZES)
    return SIZES[name]


def choose_vocab_size(pairs: int) -> int:
    """Choose the number of subwords by the number of pairs."""
    return next((vocabulary for most, vocabulary in _VOCABULARY_LIMITS if pairs < most), 32_000)


def few_pairs_warning(pairs: int) -> str | None:
    """The warning for too few training pairs; None if there are enough."""
    if pairs >= _FEW_PAIRS:
        return None
    if pairs < 1000:
        return f"{pairs:,} pairs will not make a translator: it will memorise them. Tens of thousands are needed."
    return f"{pairs:,} pairs are few: expect good translations only of texts much like these."

"""Sizes of new language models and training hyperparameters, chosen by the characters of the data.

    tiny     4 layers of 128, blocks of 128 tokens      up to two million characters, such as a long book
    small    6 layers of 256, blocks of 256             up to fifty million
    base     8 layers of 512, blocks of 512             more

Fine-tuning: a tenth of the rate of a new model, as Radford et al. 2018 do (section 4.1: 2.5e-4 and 6.25e-5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.errors import check_choice


@final
@dataclass(frozen=True)
class Size:
    """A preset: the hyperparameters of a new model and of its training for an amount of data.

    ``block`` is the tokens of a training example, and the model's context; ``batch`` the blocks of a batch.
    """

    name: str
    width: int
    layers: int
    heads: int
    block: int
    batch: int
    dropout: float
    peak: float
    warmup: int


SIZES = {
    size.name: size
    for size in (
        Size("tiny", width=128, layers=4, heads=4, block=128, batch=16, dropout=0.0, peak=2e-3, warmup=100),
        Size("small", width=256, layers=6, heads=8, block=256, batch=16, dropout=0.1, peak=1e-3, warmup=200),
        Size("base", width=512, layers=8, heads=8, block=512, batch=16, dropout=0.1, peak=5e-4, warmup=500),
    )
}
FINE_TUNING_PEAK, FINE_TUNING_WARMUP, FINE_TUNING_EPOCHS = 6e-5, 100, 3
LORA_PEAK = 2e-4
"""The rate of low-rank adapters: Hu et al. 2021, "LoRA", appendix D, for GPT-2."""
MAX_START_BLOCK = 512
"""The block of a model to start from whose context is longer, unless the recipe names one."""

_SIZE_LIMITS = ((2_000_000, "tiny"), (50_000_000, "small"))
_VOCABULARY_LIMITS = ((500_000, 500), (5_000_000, 2_000), (50_000_000, 8_000))
CHARACTERS = 30_000
"""The most characters of a vocabulary of characters without a given size."""


def choose_size(characters: int, name: str | None = None) -> Size:
    """Return the preset ``name``, or the one for this number of characters. Raises OptionError for an unknown name."""
    if name is None:
        name = next((size for most, size in _SIZE_LIMITS if characters < most), "base")
    check_choice("model size", name, SIZES)
    return SIZES[name]


def choose_vocab_size(characters: int) -> int:
    """Choose the number of subwords by the number of characters."""
    return next((vocabulary for most, vocabulary in _VOCABULARY_LIMITS if characters < most), 16_000)

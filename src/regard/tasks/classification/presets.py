"""Sizes of new classifiers and training hyperparameters, chosen by the number of texts.

    tiny     2 layers of 128     thousands of texts
    small    4 layers of 256     tens to hundreds of thousands
    base     6 layers of 512     millions

A Perceiver of the same size reads bytes: a layer more, as wide, and a quarter as many latents as a layer is wide.

Fine-tuning: Devlin et al. 2019, "BERT", appendix A.3, with a peak of 2e-5 to 5e-5, batches of 16 or 32 and 2 to 4
epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.errors import check_choice
from regard.tasks.recipe_fields import FineTuning


@final
@dataclass(frozen=True)
class Size:
    """A preset: the hyperparameters of a new encoder and of its training for an amount of data."""

    name: str
    width: int
    layers: int
    heads: int
    inner: int
    dropout: float
    peak: float
    warmup: int


SIZES = {
    size.name: size
    for size in (
        Size("tiny", width=128, layers=2, heads=4, inner=256, dropout=0.2, peak=1e-3, warmup=200),
        Size("small", width=256, layers=4, heads=4, inner=1024, dropout=0.1, peak=5e-4, warmup=500),
        Size("base", width=512, layers=6, heads=8, inner=2048, dropout=0.1, peak=3e-4, warmup=1000),
    )
}
PERCEIVER = "perceiver"
MODELS = (*SIZES, PERCEIVER, *(f"{PERCEIVER}-{size}" for size in SIZES))
"""Names of new models: a size is the size of a Transformer encoder; a Perceiver alone has the size of the data."""
FINE_TUNING = FineTuning(peak=5e-5, warmup=200, epochs=4, lora_peak=4e-4)
"""The rate of low-rank adapters: Hu et al. 2021, "LoRA", appendix D, for RoBERTa."""

_SIZE_LIMITS = ((50_000, "tiny"), (1_000_000, "small"))
_VOCABULARY_LIMITS = ((5_000, 2_000), (50_000, 4_000), (500_000, 8_000))


def choose_size(texts: int, name: str | None = None) -> Size:
    """Return the size of the model ``name``, or that for this number of texts. Raises OptionError for another name."""
    if name is not None:
        check_choice("model", name, MODELS)
    if name is None or name == PERCEIVER:
        name = next((size for most, size in _SIZE_LIMITS if texts < most), "base")
    return SIZES[name.removeprefix(f"{PERCEIVER}-")]


def reads_bytes(name: str | None) -> bool:
    """Whether the model ``name`` is a Perceiver, which reads bytes."""
    return name is not None and name.startswith(PERCEIVER)


def choose_vocab_size(texts: int) -> int:
    """Choose the number of subwords by the number of texts."""
    return next((vocabulary for most, vocabulary in _VOCABULARY_LIMITS if texts < most), 16_000)

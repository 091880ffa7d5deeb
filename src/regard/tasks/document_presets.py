"""Sizes of new models of documents and training hyperparameters, chosen by the characters of the data.

tiny     up to two million characters, such as a long book
small    up to fifty million
base     more

The settings of a training run that the size of the model and fine-tuning decide where they are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from regard.errors import check_choice
from regard.tasks.document_recipe import DocumentRecipe
from regard.train import Settings


def complete_settings(settings: Settings, *, peak: float, warmup: int, epochs: int | None) -> Settings:
    """Fill in the learning rate and the warm-up where they are None, and ``epochs`` in a run without another end."""
    settings = replace(settings, schedule=settings.schedule.complete(peak=peak, warmup=warmup))
    is_unlimited = (settings.epochs, settings.steps, settings.minutes) == (None, None, None)
    return replace(settings, epochs=epochs) if is_unlimited else settings


CHARACTERS = 30_000
"""The most characters of a vocabulary of characters without a given size."""
MAX_START_BLOCK = 512
"""The block of a model to start from that reads longer texts, unless the recipe names one."""
_SIZE_LIMITS = ((2_000_000, "tiny"), (50_000_000, "small"))
_VOCABULARY_LIMITS = (500_000, 5_000_000, 50_000_000)


@final
@dataclass(frozen=True)
class Size:
    """A preset: the hyperparameters of a new model and of its training for an amount of data.

    ``block`` is the tokens of a training example, and the longest text of the model; ``batch`` the blocks of a batch.
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


@final
@dataclass(frozen=True)
class DocumentPresets:
    """The presets of a task.

    ``sizes`` are tiny, small and base. ``vocabularies`` are sizes of vocabularies, for less than 500,000, 5 million and
    50 million characters, and for more. Fine-tuning has a peak rate and warm-up steps of its own, and without a limit
    this number of epochs; low-rank adapters have the rate ``lora_peak``.
    """

    sizes: tuple[Size, Size, Size]
    vocabularies: tuple[int, int, int, int]
    fine_tuning_peak: float
    fine_tuning_warmup: int
    fine_tuning_epochs: int
    lora_peak: float

    def choose_size(self, characters: int, name: str | None = None) -> Size:
        """Return the size ``name``, or that for this number of characters. Raises OptionError for an unknown name."""
        sizes = {size.name: size for size in self.sizes}
        if name is None:
            name = next((size for most, size in _SIZE_LIMITS if characters < most), "base")
        check_choice("model size", name, sizes)
        return sizes[name]

    def choose_vocab_size(self, characters: int, tokenizer: str) -> int:
        """Choose the number of tokens by the number of characters, for this kind of tokenizer."""
        if tokenizer == "characters":
            return CHARACTERS
        return self.vocabularies[sum(characters >= most for most in _VOCABULARY_LIMITS)]

    def complete(self, settings: Settings, size: Size, recipe: DocumentRecipe) -> Settings:
        """Fill in the learning rate and the warm-up where they are None, and the epochs of fine-tuning."""
        is_new = recipe.start is None
        peak, warmup = (size.peak, size.warmup) if is_new else (self.fine_tuning_peak, self.fine_tuning_warmup)
        peak = peak if recipe.lora is None else self.lora_peak
        epochs = None if is_new else self.fine_tuning_epochs
        return complete_settings(settings, peak=peak, warmup=warmup, epochs=epochs)

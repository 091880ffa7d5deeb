"""Sizes of new models of documents and training hyperparameters, chosen by the characters of the data.

tiny     up to two million characters, such as a long book
small    up to fifty million
base     more
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.errors import check_choice
from regard.tasks.recipe_fields import FineTuning

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
    50 million characters, and for more.
    """

    sizes: tuple[Size, Size, Size]
    vocabularies: tuple[int, int, int, int]
    fine_tuning: FineTuning

    @property
    def by_name(self) -> dict[str, Size]:
        """The sizes by name."""
        return {size.name: size for size in self.sizes}

    def choose_size(self, characters: int, name: str | None = None) -> Size:
        """Return the size ``name``, or that for this number of characters. Raises OptionError for an unknown name."""
        if name is None:
            name = next((size for most, size in _SIZE_LIMITS if characters < most), "base")
        check_choice("model size", name, self.by_name)
        return self.by_name[name]

    def choose_vocab_size(self, characters: int, tokenizer: str) -> int:
        """Choose the number of tokens by the number of characters, for this kind of tokenizer."""
        if tokenizer == "characters":
            return CHARACTERS
        return self.vocabularies[sum(characters >= most for most in _VOCABULARY_LIMITS)]

"""Presets of new models: sizes by name, chosen by the amount of data, and the training that suits each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from regard.errors import check_choice

SIZES = ("tiny", "small", "base")
"""Sizes of new models, of which each task has presets."""
MAX_START_BLOCK = 512
"""The block of a model to start from that reads longer texts, unless the recipe names one."""
_SYMBOLS = 30_000
"""The most words or characters of a vocabulary of these without a given size."""


@final
@dataclass(frozen=True)
class FineTuning:
    """Settings of fine-tuning that a user leaves out; ``epochs`` is for a run without another end."""

    peak: float
    warmup: int
    epochs: int
    lora_peak: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Size:
    """A preset: the hyperparameters of a new model, and of its training, for an amount of data.

    ``below`` is the amount of data from which the next size is chosen; None is any amount. ``length`` is the tokens of
    a training example, and ``batch`` the examples of a batch, or its tokens, where they follow from the size. ``own``
    are hyperparameters that only models of one task have.
    """

    name: str = field(kw_only=False)
    below: int | None = None
    width: int
    layers: int
    heads: int
    inner: int = 0
    dropout: float = 0.0
    peak: float
    warmup: int
    length: int = 0
    batch: int = 0
    own: Mapping[str, Any] = field(default_factory=dict)

    def numbers(self, *names: str) -> dict[str, Any]:
        """The hyperparameters of these names, and all ``own`` ones."""
        return {name: getattr(self, name) for name in names} | dict(self.own)


@final
@dataclass(frozen=True)
class Presets:
    """The presets of a task: sizes, the smallest first, and sizes of vocabularies, each below an amount of data.

    ``fine_tuning`` are the settings of fine-tuning; None takes the settings of the size, as for a new model.
    """

    sizes: Sequence[Size]
    vocabularies: Sequence[tuple[int | float, int]] = ()
    fine_tuning: FineTuning | None = None

    @property
    def by_name(self) -> dict[str, Size]:
        """The sizes by name."""
        return {size.name: size for size in self.sizes}

    def choose_size(self, amount: int, name: str | None = None) -> Size:
        """The size of ``name``, or the size for this amount of data. Raises OptionError for an unknown name."""
        if name is None:
            return next(size for size in self.sizes if size.below is None or amount < size.below)
        check_choice("model size", name, self.by_name)
        return self.by_name[name]

    def choose_vocab_size(self, amount: int, tokenizer: str = "bpe") -> int:
        """The number of tokens for this amount of data and this kind of tokenizer."""
        if tokenizer in ("words", "characters"):
            return _SYMBOLS
        return next(size for below, size in self.vocabularies if amount < below)


def name_models(architectures: Sequence[str]) -> tuple[str, ...]:
    """The names of new models: a size of the usual architecture, an architecture, or both, as deit-small."""
    return (*SIZES, *architectures, *(f"{kind}-{size}" for kind in architectures for size in SIZES))


def split_model_name(name: str | None, architectures: Sequence[str], usual: str) -> tuple[str, str | None]:
    """The architecture and the size in the name of a new model; the ``usual`` one, or None, if it has none."""
    name = name or ""
    kind = next((architecture for architecture in architectures if name.startswith(architecture)), usual)
    return kind, next((size for size in SIZES if name.endswith(size)), None)

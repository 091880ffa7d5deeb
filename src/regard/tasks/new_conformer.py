"""The model of a task on sounds: a new Conformer of a preset size, or a trained one with a head for the labels.

Sizes of new models of sounds, and training hyperparameters, chosen by the sounds.

    tiny     4 blocks of 64, kernels of 15        0.52 million weights for 80 bands      up to 20,000 sounds
    small    8 blocks of 128, kernels of 31       3.7 million                            up to 200,000
    base     16 blocks of 144, kernels of 31      8.7 million, Conformer S               more

Gulati et al. 2020, table 1, has the sizes of base. Frames are 25 ms long, one each 10 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from regard.audio import AudioProcessor
from regard.models import AudioEncoder, Conformer, ConformerConfig
from regard.tasks.hyperparameters import apply_hyperparameters, describe_attention, describe_weights, determined_by
from regard.tasks.presets import FineTuning, Presets, Size
from regard.tasks.sound_recipe import SoundRecipe

_HIGHEST_RATE = 16_000
_WINDOW, _HOP = 0.025, 0.01
_LEAST_FFT = 512
_BANDS = ((16_000, 80), (8_000, 64), (0, 40))
DEFAULT_SECONDS = 60.0
"""Longest sound of a new model."""


PRESETS = Presets(
    sizes=(
        Size("tiny", below=20_000, width=64, layers=4, heads=4, inner=256, own={"kernel": 15}, peak=2e-3, warmup=200),
        Size("small", below=200_000, width=128, layers=8, heads=4, inner=512, own={"kernel": 31}, peak=1e-3,
             warmup=500),
        Size("base", width=144, layers=16, heads=4, inner=576, own={"kernel": 31}, peak=1e-3, warmup=1000),
    ),
    fine_tuning=FineTuning(peak=1e-4, warmup=100, epochs=10),
)  # fmt: skip


def choose_rate(rates: Sequence[int]) -> int:
    """The sampling rate of a new model: the most frequent one of its sounds, at most 16,000."""
    return min(Counter(rates).most_common(1)[0][0], _HIGHEST_RATE)


def make_processor(rate: int, *, max_seconds: float) -> AudioProcessor:
    """The processor of a new model: frames of 25 ms, one each 10 ms, of 80 bands, or fewer for low rates."""
    window = max(1, round(_WINDOW * rate))
    bands = next(count for lowest, count in _BANDS if rate >= lowest)
    fft = max(_LEAST_FFT, 2 ** (window - 1).bit_length())
    return AudioProcessor(
        rate=rate, mels=bands, fft=fft, window=window, hop=max(1, round(_HOP * rate)), max_seconds=max_seconds
    )


Build: TypeAlias = Callable[..., AudioEncoder]
"""A function (recipe, size, *, bands, labels) that builds a new model."""

_DATA_FIELDS = determined_by(
    "the data", ("bands", "labels", "head"), do="set the sampling rate with `sample_rate=...`, which decides the bands"
)


def load_conformer(recipe: SoundRecipe) -> Conformer | None:
    """Load the trained model that the recipe starts from; None if it trains a new one.

    Raises CheckpointError for another kind of model, and for one without a processor.
    """
    if recipe.start is None:
        return None
    model = Conformer.load(recipe.start)
    processor = model.require_processor()
    if recipe.max_seconds is not None:
        model.processor = replace(processor, max_seconds=recipe.max_seconds)
    return model


def check_hyperparameters(recipe: SoundRecipe) -> None:
    """Try hyperparameters before data is read. Raises OptionError for those that no new model accepts."""
    with torch.device("meta"):
        build_conformer(recipe, PRESETS.choose_size(0, recipe.model), bands=80, labels=("a", "b"))


def build_conformer(recipe: SoundRecipe, size: Size, *, bands: int, labels: tuple[str, ...]) -> AudioEncoder:
    """Build a Conformer with random weights, and the head of the recipe. Raises as its config."""
    numbers = size.numbers("width", "layers", "heads", "inner")
    numbers |= {"bands": bands, "labels": labels, "head": recipe.head}
    numbers |= {} if recipe.attention is None else {"mechanism": recipe.attention}
    numbers |= {} if recipe.position is None else {"position": recipe.position}
    return Conformer(apply_hyperparameters(ConformerConfig, numbers, recipe.hyperparameters, fixed=_DATA_FIELDS))


def with_ctc_labels(model: Conformer, labels: tuple[str, ...]) -> Conformer:
    """The model with a ctc head that has the ``labels``; the model itself if its ctc head has them all.

    A ctc head keeps its labels, their weights and the weights of the blank: new labels follow with random weights.
    """
    if model.classifies or not model.labels:
        return model.with_labels(labels, head="ctc")
    new = tuple(label for label in labels if label not in model.labels)
    if not new:
        return model
    extended = model.with_labels(model.labels + new, head="ctc")
    assert model.head is not None
    assert extended.head is not None
    with torch.no_grad():
        for name, weight in model.head.named_parameters():
            extended.head.get_parameter(name)[: len(weight)] = weight
    return extended


def describe_model(recipe: SoundRecipe, size: Size | None, model: AudioEncoder, processor: AudioProcessor) -> str:
    """Describe the model in a line."""
    kind = type(model).__name__
    name = f"{recipe.start}, a {kind}" if size is None else f"{kind} {size.name}"
    sound = [f"{processor.rate:,} samples a second", f"{model.bands} bands"]
    return ", ".join([name, *sound, *describe_attention(model.config), describe_weights(model)])

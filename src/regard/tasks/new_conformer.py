"""The model of a task on sounds: a new Conformer of a preset size, or a trained one with a head for the labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from regard.audio import AudioProcessor
from regard.classification.sound_classifier import get_sound_processor
from regard.models import AudioEncoder, Conformer, ConformerConfig
from regard.tasks.hyperparameters import apply_hyperparameters, describe_weights
from regard.tasks.sound_batches import SoundBatches
from regard.tasks.sound_presets import SIZES, Size
from regard.tasks.sound_recipe import SoundRecipe

Build: TypeAlias = Callable[..., AudioEncoder]
"""A function (recipe, size, *, bands, labels) that builds a new model."""

_DATA_FIELDS = ("bands", "labels", "head")
"""Fields of a config that the data and the task determine."""


def load_start(recipe: SoundRecipe) -> Conformer | None:
    """Load the trained model that the recipe starts from; None if it trains a new one.

    Raises CheckpointError for another kind of model, and for one without a processor.
    """
    if recipe.start is None:
        return None
    model = Conformer.load(recipe.start)
    processor = get_sound_processor(model)
    if recipe.max_seconds is not None:
        model.processor = replace(processor, max_seconds=recipe.max_seconds)
    return model


def check_hyperparameters(recipe: SoundRecipe) -> None:
    """Try hyperparameters before data is read. Raises OptionError for those that no new model accepts."""
    with torch.device("meta"):
        build_conformer(recipe, SIZES[recipe.model or "tiny"], bands=80, labels=("a", "b"))


def build_conformer(recipe: SoundRecipe, size: Size, *, bands: int, labels: tuple[str, ...]) -> AudioEncoder:
    """Build a Conformer with random weights, and the head of the recipe. Raises as its config."""
    numbers: dict[str, Any] = {name: getattr(size, name) for name in ("width", "layers", "heads", "inner", "kernel")}
    numbers |= {"bands": bands, "labels": labels, "head": recipe.head}
    numbers |= {} if recipe.attention is None else {"mechanism": recipe.attention}
    numbers |= {} if recipe.position is None else {"position": recipe.position}
    config = apply_hyperparameters(
        ConformerConfig,
        numbers,
        recipe.hyperparameters,
        fixed=_DATA_FIELDS,
        fixed_by="the data",
        instead="set the sampling rate with sample_rate=... (--sample-rate), which decides the bands",
    )
    return Conformer(config)


def with_labels(model: Conformer, labels: tuple[str, ...]) -> Conformer:
    """The model with a head of random weights for ``labels``; the model itself if it classifies the same labels.

    The same labels in another order keep the head, and the model's order.
    """
    if model.classifies and set(model.labels) == set(labels):
        return model
    return _replace_head(model, labels, "classification")


def with_ctc_labels(model: Conformer, labels: tuple[str, ...]) -> Conformer:
    """The model with a ctc head that has the ``labels``; the model itself if its ctc head has them all.

    A ctc head keeps its labels, and their weights and that of the blank: new labels follow with random weights.
    """
    if model.classifies or not model.labels:
        return _replace_head(model, labels, "ctc")
    new = tuple(one for one in labels if one not in model.labels)
    if not new:
        return model
    extended = _replace_head(model, model.labels + new, "ctc")
    assert model.head is not None
    assert extended.head is not None
    with torch.no_grad():
        for name, weight in model.head.named_parameters():
            extended.head.get_parameter(name)[: len(weight)] = weight
    return extended


def _replace_head(model: Conformer, labels: tuple[str, ...], head: str) -> Conformer:
    """The model with a head of random weights."""
    renewed = Conformer(replace(model.config, labels=labels, head=head))
    kept = {name: weight for name, weight in model.state_dict().items() if not name.startswith("head.")}
    renewed.load_state_dict(renewed.state_dict() | kept)
    renewed.processor = model.processor
    return renewed


def try_model(model: AudioEncoder, batches: SoundBatches[Any]) -> None:
    """Compute a sound, so that a model that cannot compute it fails before training."""
    model.eval()
    features, mask = batches.read(np.arange(1))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model(features, mask=mask)


def describe_model(recipe: SoundRecipe, size: Size | None, model: AudioEncoder, processor: AudioProcessor) -> str:
    """Describe the model in a line."""
    kind = type(model).__name__
    name = f"{recipe.start}, a {kind}" if size is None else f"{kind} {size.name}"
    mechanism = getattr(model.config, "mechanism", "dot_product")
    attention = "" if mechanism == "dot_product" else f", attention {mechanism}"
    return f"{name}, {processor.rate:,} samples a second, {model.bands} bands{attention}, {describe_weights(model)}"

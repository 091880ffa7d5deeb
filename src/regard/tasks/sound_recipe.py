"""The recipe of a model of sounds: data, model and augmentation. Fields that are None follow from the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.audio.sound_augmentation import LEVELS, SoundAugmentation, choose_sound_augmentation
from regard.audio.sound_file import MAX_SECONDS, RATES
from regard.errors import check_choice, check_count, check_flag, check_kind, check_number
from regard.tasks.recipe_fields import check_effect_on_trained_model, check_optional, check_paths, to_json_fields
from regard.tasks.sound_presets import DEFAULT_MEMORY, SIZES

_OVERRIDES = ("mask_bands", "mask_frames", "tempo", "warp")


@dataclass(frozen=True)
class SoundRecipe(ABC):
    """The data and the model: the fields that all models of sounds have.

    Args:
        data: folders of WAV or FLAC files, or tables of their paths, with what is to be learned.
        validation: validation sounds; without any, some of ``data`` are held out.
        skip_bad: leave broken sounds out; otherwise they are an error.
        model: the size of a new Conformer: "tiny", "small" or "base"; None chooses it by the number of sounds.
        start: a trained model to start from: the folder of a Conformer. None trains a new model.
        sample_rate: samples per second of a new model; None is the most frequent rate of the sounds, at most 16,000.
        max_seconds: longer sounds count as broken; None is that of the trained model, or 60.
        hyperparameters: values that override those of a new model's config.
        attention: the attention mechanism of a new model.
        position: the position of a new model: "relative", "rotary" or "none".
        augment: "none", "light" or "strong", as ``audio.sound_augmentation.choose_sound_augmentation``.
        mask_bands, mask_frames, tempo, warp: override a part of it; None leaves the part as it is.
        batch: sounds of a batch.
        metric: the validation metric that decides which weights are best; None is that of the task.
        memory: gigabytes of features to keep; those of more sounds are computed again in each epoch.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    data: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    skip_bad: bool = False
    model: str | None = None
    start: str | None = None
    sample_rate: int | None = None
    max_seconds: float | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    attention: str | None = None
    position: str | None = None
    augment: str = "light"
    mask_bands: float | None = None
    mask_frames: float | None = None
    tempo: float | None = None
    warp: float | None = None
    batch: int = 64
    metric: str | None = None
    memory: float = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        check_paths(self, example="birds/")
        check_kind("hyperparameters", self.hyperparameters, dict, do='for example hyperparameters={"layers": 4}')
        check_optional(self, texts=("model", "start", "attention", "position", "metric"), counts=())
        if self.model is not None:
            check_choice("model", self.model, SIZES)
        check_choice("augmentation", self.augment, LEVELS)
        check_flag("skip_bad", self.skip_bad)
        check_count("batch", self.batch)
        check_number("memory", self.memory, least=0.0)
        if self.sample_rate is not None:
            check_count("sample_rate", self.sample_rate, least=RATES[0], most=RATES[1])
        if self.max_seconds is not None:
            check_number("max_seconds", self.max_seconds, above=0.0, most=float(MAX_SECONDS))
        self.augmentation()  # raises for parts that are out of range

    @property
    @abstractmethod
    def head(self) -> str:
        """The head of the model: "classification" or "ctc"."""

    def augmentation(self) -> SoundAugmentation:
        """The augmentation of training sounds."""
        overrides = {name: getattr(self, name) for name in _OVERRIDES}
        return choose_sound_augmentation(self.augment).override(**overrides)

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, except those of the model, which the data may decide, and ``memory``."""
        left_out = ("model", "hyperparameters", "attention", "position", "sample_rate", "max_seconds", "memory")
        return to_json_fields(self, left_out=left_out)

    def check_effect(self) -> None:
        """Raise OptionError for fields that have no effect with a trained model."""
        if self.start is None:
            return
        useless = {
            "model (--model)": self.model is not None,
            "sample_rate (--sample-rate)": self.sample_rate is not None,
            "hyperparameters (--set)": bool(self.hyperparameters),
            "attention (--attention)": self.attention is not None,
            "position (--position)": self.position is not None,
        }
        check_effect_on_trained_model(self.start, useless, parts="the architecture")

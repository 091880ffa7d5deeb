"""The recipe of a model of sounds: data, model and augmentation. Fields that are None follow from the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import check_count, check_number
from regard.fields import declare
from regard.tasks.recipe_fields import (
    DEFAULT_MEMORY,
    MEMORY,
    SKIP_BAD,
    Recipe,
)

if TYPE_CHECKING:
    from regard.audio.sound_augmentation import SoundAugmentation

_OVERRIDES = ("mask_bands", "mask_frames", "tempo", "warp")


def declare_sounds(text: str, **facts: Any) -> dict[str, Any]:
    """Declare what only sounds have."""
    return declare(text, panel="Sounds", **facts)


def _check_rate(name: str, rate: object) -> None:
    from regard.audio.sound_file import RATES

    check_count(name, rate, minimum=RATES[0], maximum=RATES[1])


def _check_seconds(name: str, seconds: object) -> None:
    from regard.audio.sound_file import MAX_SECONDS

    check_number(name, seconds, above=0.0, maximum=float(MAX_SECONDS))


@dataclass(frozen=True)
class SoundRecipe(Recipe, ABC):
    """The data and the model: the fields that all models of sounds have.

    Those without a declaration here are declared by each of them. Raises OptionError for values of the wrong type and
    numbers out of range.
    """

    data: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    start: str | None = None
    model: str | None = None
    attention: str | None = None
    position: str | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    batch: int = 64
    metric: str | None = None
    augment: str = "light"
    memory: float = field(default=DEFAULT_MEMORY, metadata=MEMORY)
    skip_bad: bool = field(default=False, metadata=SKIP_BAD)
    sample_rate: int | None = field(
        default=None,
        metadata=declare_sounds(
            "Samples per second of a new model. Default: the most frequent rate of the sounds, at most 16,000.",
            check=_check_rate,
            shell_range=(1, None),
            is_saved=False,
            of_new_model=True,
        ),
    )
    max_seconds: float | None = field(
        default=None,
        metadata=declare_sounds("Longer sounds count as broken. Default: 60.", check=_check_seconds, is_saved=False),
    )
    mask_bands: float | None = field(
        default=None,
        metadata=declare_sounds(
            "Largest share of the bands in each of two hidden stripes; 0 disables them. Default: 0.175."
        ),
    )
    mask_frames: float | None = field(
        default=None,
        metadata=declare_sounds(
            "Largest share of the frames in each of two hidden stripes; 0 disables them. Default: 0.25, for "
            "transcribe 0.05."
        ),
    )
    tempo: float | None = field(
        default=None, metadata=declare_sounds("Largest relative change of the tempo; 0.15 in strong.")
    )
    warp: float | None = field(
        default=None, metadata=declare_sounds("Largest relative shift of frequencies; 0.1 in strong.")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.augmentation()  # raises for parts that are out of range

    @property
    @abstractmethod
    def head(self) -> str:
        """The head of the model: "classification" or "ctc"."""

    def augmentation(self) -> SoundAugmentation:
        """The augmentation of training sounds."""
        from regard.audio.sound_augmentation import choose_sound_augmentation

        overrides = {name: getattr(self, name) for name in _OVERRIDES}
        return choose_sound_augmentation(self.augment).override(**overrides)

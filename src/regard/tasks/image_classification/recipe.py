"""The recipe of an image classifier: data, model, augmentation and loss. Fields that are None follow from the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from regard.arguments import explain_arguments
from regard.errors import OptionError, short_repr
from regard.fields import declare
from regard.tasks.classifier_recipe import AUGMENT, ClassifierRecipe, declare_model
from regard.tasks.image_classification.presets import MODELS
from regard.tasks.recipe_fields import DEFAULT_MEMORY, MEMORY, SKIP_BAD

if TYPE_CHECKING:
    from regard.vision.augmentation import Augmentation

_OVERRIDES = ("crop", "resized_crop", "flip", "jitter", "policy", "erase", "mixup", "cutmix")


def _declare(text: str, **facts: Any) -> dict[str, Any]:
    """Declare what only pictures have."""
    return declare(text, panel="Pictures", **facts)


@final
@explain_arguments
@dataclass(frozen=True)
class ImageClassificationRecipe(ClassifierRecipe):
    """The data and the model of an image classifier.

    The data are folders with one folder of pictures per label, tables of paths and labels, IDX files, or "mnist5000". A
    trained model to start from, a folder or a name on the Hub, keeps its head if it has the same labels. Labels are
    imbalanced if one has more than three quarters of the validation pictures. ``crop`` to ``cutmix`` override a part of
    ``augment`` (``vision.augmentation.choose_augmentation``); None leaves the part unchanged, but ``resized_crop``
    replaces a crop that is not given.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    model: str | None = field(default=None, metadata=declare_model(MODELS))
    augment: str = field(default="light", metadata=AUGMENT)
    memory: float = field(default=DEFAULT_MEMORY, metadata=MEMORY)
    skip_bad: bool = field(default=False, metadata=SKIP_BAD)
    picture_size: tuple[int, int] | None = field(
        default=None,
        metadata=_declare(
            "Height and width of a new model's pictures. Default: chosen by the data, at most 128.",
            minimum=1,
            maximum=2**12,
            example="for example picture_size=(64, 64)",
            parse=lambda size: (size, size),
            shell_kind=int,
            shell_range=(1, None),
            is_saved=False,
            of_new_model=True,
        ),
    )
    crop: int | None = field(
        default=None,
        metadata=_declare(
            "Pixels of padding before a random crop; 0 disables it. Default: an eighth of the edge.", minimum=0
        ),
    )
    resized_crop: float | None = field(
        default=None,
        metadata=_declare(
            "Instead: cut out a part of at least this share of the area, and resize it. 0.08 is usual for photos.",
            metavar="SHARE",
        ),
    )
    flip: bool | None = field(
        default=None, metadata=_declare("Mirror half of the pictures.", option="--flip/--no-flip")
    )
    jitter: float | None = field(
        default=None,
        metadata=_declare("Largest relative change of brightness, contrast and colour; 0.4 is usual for photos."),
    )
    policy: str | None = field(
        default=None,
        metadata=_declare(
            "Policy of random operations: none, trivial (TrivialAugment) or rand (RandAugment).",
            choices=("none", "trivial", "rand"),
            noun="augmentation policy",
        ),
    )
    erase: float | None = field(default=None, metadata=_declare("Probability of erasing a rectangle."))
    mixup: float | None = field(default=None, metadata=_declare("Alpha of mixup; 0 disables it."))
    cutmix: float | None = field(default=None, metadata=_declare("Alpha of cutmix; 0 disables it."))
    teacher: str | None = field(
        default=None,
        metadata=_declare(
            "Image classifier whose answers are learned too (distillation, DeiT).",
            metavar="FOLDER",
            completes="models",
        ),
    )
    distill: str | None = field(
        default=None,
        metadata=_declare(
            "How they are learned: hard (its labels) or soft (its probabilities). Default: hard.",
            choices=("hard", "soft"),
            noun="distillation",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.augmentation(32)  # raises for parts that are out of range
        if self.distill is not None and self.teacher is None:
            raise OptionError(
                "`distill` has no effect without a teacher",
                expected="`teacher=...` as well",
                got=short_repr(self.distill),
                do="leave it out, or name the folder of an image classifier",
            )

    def augmentation(self, edge: int) -> Augmentation:
        """The augmentation for pictures whose shorter edge is ``edge``."""
        from regard.vision.augmentation import choose_augmentation

        overrides = {name: getattr(self, name) for name in _OVERRIDES}
        if self.resized_crop and self.crop is None:
            overrides["crop"] = 0
        return choose_augmentation(self.augment, edge).override(**overrides)

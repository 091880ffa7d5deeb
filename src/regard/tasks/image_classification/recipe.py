"""The recipe of an image classifier: data, model, augmentation and loss. Fields that are None follow from the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from regard.errors import OptionError, check_choice, check_count, check_flag, check_kind, check_number, short_repr
from regard.tasks.image_classification.presets import MODELS
from regard.tasks.label_validation import METRICS
from regard.tasks.recipe_fields import check_effect_on_trained_model, to_json_fields
from regard.text.labelled import LabelFormat
from regard.vision.augmentation import LEVELS, POLICIES, Augmentation, choose_augmentation

CLASS_WEIGHTS = ("none", "balanced")
DISTILLATION = ("hard", "soft")
DEFAULT_MEMORY = 2.0
"""Gigabytes of decoded pictures that are kept."""
_OVERRIDES = ("crop", "resized_crop", "flip", "jitter", "policy", "erase", "mixup", "cutmix")
_PATHS_EXAMPLE = 'for example {}=(Path("flowers/"),)'
_MOST_EDGE = 2**12


@final
@dataclass(frozen=True)
class ImageClassificationRecipe:
    """The data and the model of an image classifier.

    Args:
        data: folders with one folder of pictures per label, tables of paths and labels, IDX files, or "mnist5000".
        validation: validation pictures; without any, some of ``data`` are held out.
        where: the columns of path and label in tables; a picture has one label.
        skip_bad: leave broken pictures out; otherwise they are an error.
        model: a new model, one of ``presets.MODELS``; None chooses it by the number of pictures.
        start: a trained model to start from: a folder, or a name on the Hub. Its head is kept if it has the same
            labels. None trains a new model.
        picture_size: height and width of a new model's pictures; None chooses them by the data.
        hyperparameters: values that override those of a new model's config.
        attention: the attention mechanism of a new model.
        augment: "none", "light" or "strong", as ``vision.augmentation.choose_augmentation``.
        crop, resized_crop, flip, jitter, policy, erase, mixup, cutmix: override a part of it; None leaves the part as
            it is, but ``resized_crop`` replaces a crop that is not given.
        batch: pictures of a batch.
        class_weights: "balanced" weights the loss of each label by the inverse of its frequency; or "none".
        smoothing: label smoothing factor, from 0 to 1.
        metric: the validation metric that decides which weights are best, one of ``METRICS``; None is accuracy, or
            macro F1 if one label has more than three quarters of the validation pictures.
        teacher: the folder of an image classifier whose answers are learned too. distill: "hard" or "soft", as
            ``loss``; None is hard.
        memory: gigabytes of decoded pictures to keep; more pictures are decoded again in each epoch.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    data: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    where: LabelFormat = field(default_factory=LabelFormat)
    skip_bad: bool = False
    model: str | None = None
    start: str | None = None
    picture_size: tuple[int, int] | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    attention: str | None = None
    augment: str = "light"
    crop: int | None = None
    resized_crop: float | None = None
    flip: bool | None = None
    jitter: float | None = None
    policy: str | None = None
    erase: float | None = None
    mixup: float | None = None
    cutmix: float | None = None
    batch: int = 64
    class_weights: str = "none"
    smoothing: float = 0.0
    metric: str | None = None
    teacher: str | None = None
    distill: str | None = None
    memory: float = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        for name in ("data", "validation"):
            check_kind(name, getattr(self, name), tuple, do=_PATHS_EXAMPLE.format(name))
            for path in getattr(self, name):
                check_kind(name, path, Path, do=_PATHS_EXAMPLE.format(name))
        check_kind("where", self.where, LabelFormat, do='for example LabelFormat(columns=("path", "label"))')
        check_kind("hyperparameters", self.hyperparameters, dict, do='for example hyperparameters={"layers": 4}')
        for name in ("model", "start", "attention", "policy", "metric", "teacher", "distill"):
            if getattr(self, name) is not None:
                check_kind(name, getattr(self, name), str, do=f"leave {name} out for the default")
        for what, value, valid in (
            ("model", self.model, MODELS),
            ("metric", self.metric, METRICS),
            ("distillation", self.distill, DISTILLATION),
            ("augmentation policy", self.policy, POLICIES),
        ):
            if value is not None:
                check_choice(what, value, valid)
        check_choice("augmentation", self.augment, LEVELS)
        check_choice("class weights", self.class_weights, CLASS_WEIGHTS)
        check_flag("skip_bad", self.skip_bad)
        check_count("batch", self.batch)
        check_number("smoothing", self.smoothing, least=0.0, most=1.0)
        check_number("memory", self.memory, least=0.0)
        if self.picture_size is not None:
            check_kind("picture_size", self.picture_size, tuple, do="for example picture_size=(64, 64)")
            for edge in self.picture_size:
                check_count("picture_size", edge, most=_MOST_EDGE)
        self.augmentation(32)  # raises for parts that are out of range
        if self.distill is not None and self.teacher is None:
            raise OptionError(
                "distill (--distill) has no effect without a teacher",
                expected="teacher=... (--teacher) as well",
                got=short_repr(self.distill),
                do="leave it out, or name the folder of an image classifier",
            )

    def augmentation(self, edge: int) -> Augmentation:
        """The augmentation for pictures whose shorter edge is ``edge``."""
        overrides = {name: getattr(self, name) for name in _OVERRIDES}
        if self.resized_crop and self.crop is None:
            overrides["crop"] = 0
        return choose_augmentation(self.augment, edge).override(**overrides)

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, except those of the model, which the data may decide, and ``memory``."""
        fields = to_json_fields(self, left_out=("model", "hyperparameters", "attention", "picture_size", "memory"))
        names = {name: None if getattr(self, name) is None else Path(getattr(self, name)).name for name in _FOLDERS}
        return fields | names

    def check_effect(self) -> None:
        """Raise OptionError for fields that have no effect with a trained model."""
        if self.start is None:
            return
        useless = {
            "model (--model)": self.model is not None,
            "picture_size (--picture-size)": self.picture_size is not None,
            "hyperparameters (--set)": bool(self.hyperparameters),
            "attention (--attention)": self.attention is not None,
        }
        check_effect_on_trained_model(self.start, useless, parts="the architecture")


_FOLDERS = ("start", "teacher")

"""The model of an image classifier: a new one of a preset size, or a trained one with a head for the labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from regard.errors import CheckpointError, OptionError
from regard.models import (
    Cct,
    CctConfig,
    Cvt,
    CvtConfig,
    Deit,
    DeitConfig,
    ImageEncoder,
    Swin,
    SwinConfig,
    Vit,
    VitConfig,
)
from regard.models.initial_weights import choose_deviation
from regard.tasks.hyperparameters import (
    Config,
    apply_hyperparameters,
    describe_attention,
    describe_weights,
    determined_by,
)
from regard.tasks.image_classification.presets import (
    choose_convolutions,
    choose_model,
    choose_patch_size,
    choose_window,
)
from regard.tasks.image_classification.recipe import ImageClassificationRecipe
from regard.tasks.new_perceiver import PicturePerceiverConfig
from regard.tasks.presets import Size
from regard.vision import ImageProcessor

_DATA_FIELDS = determined_by(
    "the data", ("picture_size", "channels", "labels"), do="set the size of the pictures with `picture_size=...`"
)
"""Fields of a config that the data and other options determine."""
_SWIN_PATCHES = 16
"""Rows and columns of patches of a new Swin; its second stage has half as many."""
_CVT_MAP = 16
"""Rows and columns of tokens in the first stage of a new CvT; each of the two others has half as many."""


def load_start(recipe: ImageClassificationRecipe) -> ImageEncoder | None:
    """Load the trained model that the recipe starts from, with a processor; None if it trains a new one."""
    if recipe.start is None:
        return None
    model = ImageEncoder.load(recipe.start)
    if model.processor is None:
        model.processor = default_processor(model.picture_size, model.channels)
    return model


def load_teacher(recipe: ImageClassificationRecipe) -> ImageEncoder | None:
    """Load the teacher, without gradients. Raises CheckpointError for a model without a head."""
    if recipe.teacher is None:
        return None
    model = ImageEncoder.load(recipe.teacher)
    if not model.labels:
        raise CheckpointError(
            f"{recipe.teacher} has no labels",
            expected="an image encoder with a classification head",
            got=f"a {type(model).__name__} without a head",
            do="train a head on it, or load the folder of a classifier",
        )
    if model.processor is None:
        model.processor = default_processor(model.picture_size, model.channels)
    return model.requires_grad_(False)


def check_teacher(teacher: ImageEncoder, labels: Sequence[str], name: str) -> torch.Tensor:
    """The place of each label among the teacher's labels. Raises CheckpointError if it lacks one."""
    missing = [label for label in labels if label not in teacher.labels]
    if missing:
        raise CheckpointError(
            f"the teacher {name} does not know all labels",
            expected=", ".join(labels[:8]) + (" .." if len(labels) > 8 else ""),
            got=f"a classifier without {', '.join(missing[:5])}",
            do="train a teacher on these labels",
        )
    return torch.tensor([teacher.labels.index(label) for label in labels])


def default_processor(size: tuple[int, int], channels: int) -> ImageProcessor:
    """The processor of a model without one: resize to its size, and map 0 to 1 to -1 to 1."""
    return ImageProcessor(size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)


def check_hyperparameters(recipe: ImageClassificationRecipe) -> None:
    """Try hyperparameters before data is read. Raises OptionError for those that no new model accepts."""
    kind, size = choose_model(0, recipe.model, distilled=recipe.teacher is not None)
    patches = recipe.hyperparameters.get("patch_size", 4)
    # The data decide whether patches fill the picture; here they do.
    height, width = patches if isinstance(patches, list) and len(patches) == 2 else (patches, patches)
    fitting = (8 * height, 8 * width) if type(height) is type(width) is int and min(height, width) > 0 else (32, 32)
    with torch.device("meta"):
        _build(recipe, kind, size, recipe.picture_size or fitting, channels=3, labels=("a", "b"))


def new_model(
    recipe: ImageClassificationRecipe, size: tuple[int, int], *, pictures: int, channels: int, labels: tuple[str, ...]
) -> tuple[ImageEncoder, Size]:
    """Build a model with random weights for ``pictures`` pictures of a (height, width). Raises as its config."""
    kind, preset = choose_model(pictures, recipe.model, distilled=recipe.teacher is not None)
    model = _build(recipe, kind, preset, size, channels=channels, labels=labels)
    model.processor = default_processor(size, channels)
    return model, preset


def describe_model(recipe: ImageClassificationRecipe, size: Size | None, model: ImageEncoder) -> str:
    """Describe the model in a line."""
    kind = type(model).__name__
    name = f"{recipe.start}, a {kind}" if size is None else f"{kind} {size.name}"
    height, width = model.picture_size
    colours = {1: "grey", 3: "RGB"}.get(model.channels, f"{model.channels} channels")
    pictures = [f"{colours} pictures of {height} x {width}"]
    if (patches := getattr(model.config, "patch_size", None)) is not None:
        pictures.append(f"patches of {patches[0]} x {patches[1]}")
    return ", ".join([name, *pictures, *describe_attention(model.config), describe_weights(model)])


def _build(
    recipe: ImageClassificationRecipe,
    kind: str,
    preset: Size,
    size: tuple[int, int],
    *,
    channels: int,
    labels: tuple[str, ...],
) -> ImageEncoder:
    numbers = preset.numbers("width", "layers", "heads", "inner")
    numbers |= {"picture_size": size, "channels": channels, "labels": labels}
    numbers |= {} if recipe.attention is None else {"mechanism": recipe.attention}
    return _BUILDERS[kind](recipe, numbers)


def _make_config(kind: type[Config], recipe: ImageClassificationRecipe, numbers: Mapping[str, Any]) -> Config:
    return apply_hyperparameters(kind, numbers, recipe.hyperparameters, fixed=_DATA_FIELDS)


def _with_patches(numbers: Mapping[str, Any]) -> dict[str, Any]:
    height, width = numbers["picture_size"]
    return {**numbers, "patch_size": (choose_patch_size(height), choose_patch_size(width))}


def _build_vit(recipe: ImageClassificationRecipe, numbers: Mapping[str, Any]) -> ImageEncoder:
    return Vit(_make_config(VitConfig, recipe, _with_patches(numbers)))


def _build_deit(recipe: ImageClassificationRecipe, numbers: Mapping[str, Any]) -> ImageEncoder:
    numbers = _with_patches(numbers) | {"distillation_head": recipe.teacher is not None}
    return Deit(_make_config(DeitConfig, recipe, numbers))


def _build_swin(recipe: ImageClassificationRecipe, numbers: Mapping[str, Any]) -> ImageEncoder:
    _refuse_attention(recipe, "a Swin has one attention mechanism: the dot product, with a bias, within windows")
    height, width = numbers["picture_size"]
    patches = tuple(choose_patch_size(edge, patches=_SWIN_PATCHES) for edge in (height, width))
    own = {
        "patch_size": patches,
        "width": numbers["width"] // 2,
        "deviation": choose_deviation(numbers["width"]),
        "depths": (2, numbers["layers"] - 2),
        "heads": (numbers["heads"], 2 * numbers["heads"]),
        "window": choose_window(height // patches[0], width // patches[1]),
        "inner_ratio": numbers["inner"] / numbers["width"],
    }
    return Swin(_make_config(SwinConfig, recipe, own | {name: numbers[name] for name in _DATA_FIELDS}))


def _build_cct(recipe: ImageClassificationRecipe, numbers: Mapping[str, Any]) -> ImageEncoder:
    convolutions = choose_convolutions(*numbers["picture_size"])
    own: dict[str, Any] = {"convolutions": convolutions, "tokenizer_width": numbers["width"] // 3}
    own |= {} if recipe.attention is None else {"attention_dropout": 0.0}  # most mechanisms have no weights to drop
    return Cct(_make_config(CctConfig, recipe, {**numbers, **own}))


def _build_cvt(recipe: ImageClassificationRecipe, numbers: Mapping[str, Any]) -> ImageEncoder:
    _refuse_attention(recipe, "a CvT has one attention mechanism: the dot product of convolved tokens")
    stride = choose_patch_size(min(numbers["picture_size"]), patches=_CVT_MAP)
    third, heads = numbers["width"] // 3, max(1, numbers["heads"] // 3)
    own = {
        "deviation": choose_deviation(numbers["width"]),
        "widths": (third, 2 * third, 4 * third),
        "depths": (1, 1, numbers["layers"] - 4),
        "heads": (heads, 2 * heads, 4 * heads),
        "embedding_kernels": (2 * stride - 1, 3, 3),
        "embedding_strides": (stride, 2, 2),
        "embedding_paddings": (stride // 2, 1, 1),
        "inner_ratios": (numbers["inner"] / numbers["width"],) * 3,
        "stochastic_depths": (0.0, 0.0, 0.0),
    }
    model = Cvt(_make_config(CvtConfig, recipe, own | {name: numbers[name] for name in _DATA_FIELDS}))
    height, width = numbers["picture_size"]
    if any(grid.rows * grid.columns < 2 for grid in model.key_grids(height, width)):
        raise OptionError(
            "the pictures are too small to train a CvT: batch norm needs more than one key",
            expected="pictures that leave two or more keys in each stage",
            got=f"pictures of {height} x {width}",
            do="enlarge them with `picture_size=...`, or train a ViT or a CCT",
        )
    return model


def _build_perceiver(recipe: ImageClassificationRecipe, numbers: Mapping[str, Any]) -> ImageEncoder:
    _refuse_attention(recipe, "a Perceiver has one attention mechanism: the dot product")
    own = {"width": numbers["width"], "layers": numbers["layers"] - 1, "heads": numbers["heads"]}
    own |= {"widening": numbers["inner"] // numbers["width"], "latents": numbers["width"] // 3}
    fields = own | {name: numbers[name] for name in _DATA_FIELDS}
    return _make_config(PicturePerceiverConfig, recipe, fields).build()


def _refuse_attention(recipe: ImageClassificationRecipe, reason: str) -> None:
    """Raise OptionError for a recipe with a mechanism, for an architecture that has one of its own."""
    if recipe.attention is not None:
        raise OptionError(
            reason,
            expected="no `attention=...`",
            got=repr(recipe.attention),
            do="leave it out, or train a ViT or a CCT",
        )


_BUILDERS: Mapping[str, Callable[[ImageClassificationRecipe, Mapping[str, Any]], ImageEncoder]] = MappingProxyType(
    {
        "vit": _build_vit,
        "deit": _build_deit,
        "swin": _build_swin,
        "cct": _build_cct,
        "cvt": _build_cvt,
        "perceiver": _build_perceiver,
    }
)
"""How a new model of each architecture is built; their names are ``presets.ARCHITECTURES``."""

"""The model that is trained: a new CLIP of a preset size with the recipe's hyperparameters, or a trained one.

Sizes of new CLIPs, and training hyperparameters, chosen by the number of pairs.

            pictures             texts            embeddings   vocabulary
    tiny    6 layers of 128      3 of 128         128          4,000         up to 20,000 pairs
    small   8 layers of 256      4 of 256         256          16,000        up to a million
    base    12 layers of 384     6 of 384         384          32,000        more

A picture has about 8 x 8 patches. The text tower has half as many layers as the other: captions are short, and Radford
et al. 2021, section 2.5, found that it matters less.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.errors import CheckpointError, unknown_name_error
from regard.models import Clip, ClipConfig, ClipTextConfig, ClipVisionConfig
from regard.tasks.clip.recipe import ClipRecipe
from regard.tasks.hyperparameters import (
    apply_hyperparameters,
    describe_layers,
    describe_weights,
    determined_by,
    determined_by_tokenizer,
)
from regard.tasks.image_classification.new_model import default_processor
from regard.tasks.image_classification.presets import choose_patch_size, choose_picture_size
from regard.tasks.presets import FineTuning, Presets, Size
from regard.text.tokenizer import Tokenizer

MOST_TOKENS = 77
"""The most tokens of a caption, with the start and the end token: Radford et al. 2021, section 2.4 (76 of them)."""
_SQUARE = 32


PRESETS = Presets(
    sizes=(
        Size("tiny", below=20_000, width=128, layers=6, heads=4, inner=512, peak=1e-3, warmup=100,
             own={"text_layers": 3, "vocabulary": 4_000}),
        Size("small", below=1_000_000, width=256, layers=8, heads=8, inner=1024, peak=1e-3, warmup=500,
             own={"text_layers": 4, "vocabulary": 16_000}),
        Size("base", width=384, layers=12, heads=12, inner=1536, peak=5e-4, warmup=2000,
             own={"text_layers": 6, "vocabulary": 32_000}),
    ),
    fine_tuning=FineTuning(peak=2e-5, warmup=100, epochs=10),
)  # fmt: skip


def choose_edge(height: int, width: int, *, all_alike: bool) -> int:
    """The edge of the square pictures of a new model, for data whose usual size is this."""
    edge = max(choose_picture_size(height, width, all_alike=all_alike))
    return edge if choose_patch_size(edge) > 1 else max(_SQUARE, choose_patch_size(edge))


_TOWERS = ("text", "vision")
_TEXT_FIELDS = determined_by_tokenizer("vocabulary", "max_length", "end_id", "pad_id", "start_id")
_VISION_FIELDS = determined_by(
    "the pictures", ("picture_size", "channels", "labels"), do="set the size of the pictures with `picture_size=...`"
)


def load_start(recipe: ClipRecipe) -> Clip | None:
    """Load the CLIP that the recipe starts from, with a processor; None if it trains a new one.

    Raises CheckpointError for a model that is no CLIP with a tokenizer.
    """
    if recipe.start is None:
        return None
    return load_with_tokenizer(recipe.start)


def load_with_tokenizer(folder_or_name: str | Path, *, device: str | None = None, weights: str | None = None) -> Clip:
    """Load a CLIP that can read pictures and texts; one without a processor gets the default one.

    Raises CheckpointError for one without a tokenizer, and what ``Clip.load`` raises.
    """
    model = Clip.load(folder_or_name, device=device, weights=weights)
    if model.tokenizer is None:
        raise CheckpointError(
            f"{folder_or_name} has no tokenizer",
            expected="tokenizer.json in the folder",
            got="a CLIP without one",
            do="use the whole folder of the model",
        )
    if model.vision.processor is None:
        model.vision.processor = default_processor(model.vision.picture_size, model.vision.channels)
    return model


def check_hyperparameters(recipe: ClipRecipe) -> None:
    """Try hyperparameters before data is read. Raises OptionError for those that no new model accepts."""
    with torch.device("meta"):
        Clip(
            _make_config(
                recipe, PRESETS.choose_size(0, recipe.model), edge=recipe.picture_size or 32, channels=3, text={}
            )
        )


def new_model(recipe: ClipRecipe, size: Size, *, edge: int, channels: int, tokenizer: Tokenizer) -> Clip:
    """Build a model with random weights for pictures of ``edge`` x ``edge``. Raises OptionError as its config."""
    text = {
        "vocabulary": tokenizer.vocabulary,
        "max_length": recipe.most_tokens or MOST_TOKENS,
        "end_id": tokenizer.frame[1][0],
        "pad_id": tokenizer.pad_id,
        "start_id": tokenizer.frame[0][0],
    }
    model = Clip(_make_config(recipe, size, edge=edge, channels=channels, text=text))
    model.text.tokenizer = tokenizer.with_limit(model.text.max_tokens)
    model.vision.processor = default_processor((edge, edge), channels)
    return model


def describe_model(recipe: ClipRecipe, size: Size | None, model: Clip) -> str:
    """Describe the model in a line."""
    name = f"the CLIP {recipe.start}" if size is None else f"a CLIP {size.name}"
    vision, text = model.config.vision, model.config.text
    height, width = vision.picture_size
    kind = "grey" if vision.channels == 1 else "RGB"
    pictures = f"{kind} pictures of {height} x {width} in {describe_layers(vision.layers, vision.width)}"
    texts = f"texts of at most {text.max_length} tokens in {describe_layers(text.layers, text.width)}"
    return ", ".join([name, pictures, texts, describe_weights(model)])


def _make_config(recipe: ClipRecipe, size: Size, *, edge: int, channels: int, text: Mapping[str, int]) -> ClipConfig:
    own: dict[str, dict[str, Any]] = {name: {} for name in _TOWERS}
    for name, value in recipe.hyperparameters.items():
        tower, dot, field = name.partition(".")
        if not dot or tower not in own:
            raise unknown_name_error("setting of a CLIP", name, [f"{tower}.layers" for tower in _TOWERS])
        own[tower][field] = value
    common: dict[str, Any] = {name: getattr(size, name) for name in ("width", "heads", "inner")}
    common |= {"projection": size.width, "activation": "gelu"}
    patch = choose_patch_size(edge)
    return ClipConfig(
        apply_hyperparameters(
            ClipTextConfig, {**common, "layers": size.own["text_layers"], **text}, own["text"], fixed=_TEXT_FIELDS
        ),
        apply_hyperparameters(
            ClipVisionConfig,
            {**common, "layers": size.layers, "picture_size": (edge, edge), "patch_size": (patch, patch)}
            | {"channels": channels},
            own["vision"],
            fixed=_VISION_FIELDS,
        ),
    )

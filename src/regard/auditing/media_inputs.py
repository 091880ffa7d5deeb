"""Inputs for models that read pictures or sounds, in the sizes that their config names.

pixel_values, pixels  (1, channels, height, width)    pictures; 64 x 64 where the config names no size
input_values          (1, samples)                    a sound: about 25 frames of the model's convolutions
input_values          (1, frames, bands)              a spectrogram of as many frames as the config names
input_features        (1, bands, frames)              the same, for types with a fixed number of frames, such as Whisper
input_features        (1, frames, bands)              spectrograms of other types
decoder_input_ids     (1, 9)                          ids of the text that an encoder-decoder writes
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.example import OWN_SOUND_NAMES, SOUND_NAMES

PICTURE_SIZE = 64
FRAMES = 25
SAMPLES = 4000
"""Samples of a sound where no convolutions say how many make a frame."""
TARGET_LENGTH = 9
_NAMES = ("pixel_values", "pixels", *SOUND_NAMES, *OWN_SOUND_NAMES)
_BANDS = ("feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins", "feature_size", "bands")


def find_media_inputs(model: nn.Module) -> dict[str, Tensor] | None:
    """Random inputs of one call of a model of ``transformers`` or regard that reads pictures or sounds; else None.

    Configs do not say the order of dimensions, so the first shape that the model can be called with is taken.
    """
    takes = inspect.signature(model.forward).parameters
    name = next((name for name in (getattr(model, "main_input_name", ""), "pixels", "features") if name in takes), "")
    config = getattr(model, "config", None)
    if config is None or name not in _NAMES:
        return None
    others: dict[str, Tensor] = {}
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        generator = torch.Generator().manual_seed(1)
        others["decoder_input_ids"] = torch.randint(3, _vocabulary(config), (1, TARGET_LENGTH), generator=generator)
    found = _find_shape(model, name, (config, model), others)
    return None if found is None else {**found, **others}


def find_media_beside(model: nn.Module, text: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Random pictures or sounds that a model of ``transformers`` reads beside a text, as CLIP does; else None."""
    takes = inspect.signature(model.forward).parameters
    config: Any = model.config
    parts = [part for part in (getattr(config, f"{kind}_config", None) for kind in ("vision", "audio")) if part]
    names = [name for name in _NAMES if name in takes]
    return _find_shape(model, names[0], (*parts, config), text) if names and parts else None


def _find_shape(
    model: nn.Module, name: str, owners: Sequence[Any], others: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    generator = torch.Generator().manual_seed(0)
    for shape in _shapes(name, owners):
        inputs = {name: torch.randn(shape, generator=generator)}
        if _takes(model, {**inputs, **others}):
            return inputs
    return None


def _shapes(name: str, owners: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """The shapes to try. ``owners`` of the sizes are the config, and the model."""
    if name in ("pixel_values", "pixels"):
        channels = _number(owners, "num_channels", "channels") or 3
        for size in _picture_sizes(owners):
            yield (1, channels, *size)
        return
    bands = _number(owners, *_BANDS)
    frames = _number(owners, "max_length") if name == "input_values" and bands else None
    if frames:
        yield (1, frames, bands or 80)
    if name == "input_values":
        strides = getattr(owners[0], "conv_stride", None)
        yield (1, (FRAMES + 5) * math.prod(strides) if isinstance(strides, tuple | list) else SAMPLES)
        return
    longest = _number(owners, "max_source_positions")
    if longest and name == "input_features":
        yield (1, bands or 80, 2 * longest)
    yield (1, 2 * FRAMES, bands or 80)


def _picture_sizes(owners: Sequence[Any]) -> Iterator[tuple[int, int]]:
    for owner, name in itertools.product(owners, ("image_size", "picture_size")):
        size = getattr(owner, name, None)
        if isinstance(size, int):
            yield size, size
        elif isinstance(size, tuple | list) and len(size) == 2:
            yield int(size[0]), int(size[1])
    yield PICTURE_SIZE, PICTURE_SIZE
    yield 224, 224


def _number(owners: Sequence[Any], *names: str) -> int | None:
    """The first positive integer of these names."""
    values = (getattr(owner, name, None) for owner, name in itertools.product(owners, names))
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _vocabulary(config: Any) -> int:
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    return max(_number((text,), "vocab_size") or 97, 5)


def _takes(model: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Whether a model can be called with these inputs."""
    weight = next((tensor for tensor in model.parameters() if tensor.is_floating_point()), torch.zeros(()))
    moved = {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }
    try:
        with torch.no_grad():
            model(**moved)
    # Models raise errors of any kind for shapes that they do not take.
    except Exception:
        return False
    return True

"""Perceivers small enough to build in a test, one for each kind of input and output."""

import torch

from regard.models import (
    AudioInput,
    AudioOutput,
    ClassOutput,
    ConvolutionInput,
    FlowInput,
    FlowOutput,
    JoinedInput,
    JoinedOutput,
    LabelInput,
    LabelOutput,
    Perceiver,
    PerceiverConfig,
    PixelInput,
    TextInput,
    TextOutput,
    TokenInput,
    TrainedPixelInput,
    VideoInput,
    VideoOutput,
)

SIZES = {"latents": 5, "width": 12, "layers": 2, "repeats": 2, "heads": 3, "cross_heads": 1, "deviation": 0.3}
LABELS = ("cat", "dog", "owl")
JOINED = PerceiverConfig(
    JoinedInput(
        {"sound": AudioInput(21, 3, 5), "film": VideoInput((2, 3, 2), patch=2, bands=3), "label": LabelInput(3)},
        hidden=("label",),
    ),
    JoinedOutput(
        {"sound": AudioOutput(21, 3, 5), "film": VideoOutput((2, 5, 3), bands=3), "label": LabelOutput(LABELS, 7)},
        width=13,
    ),
    **SIZES,
)
CONFIGS = {
    "tokens": PerceiverConfig(TokenInput(7), **SIZES),
    "text": PerceiverConfig(TextInput(max_length=17, width=16), TextOutput(heads=2, query_key_width=6), **SIZES),
    "text class": PerceiverConfig(TextInput(max_length=17, width=7), ClassOutput(LABELS), **SIZES),
    "pixels": PerceiverConfig(PixelInput((5, 7), channels=1, bands=3), ClassOutput(LABELS), **SIZES),
    "trained pixels": PerceiverConfig(TrainedPixelInput((5, 7), channels=2, width=6), ClassOutput(LABELS), **SIZES),
    "convolution": PerceiverConfig(
        ConvolutionInput((17, 13), channels=1, width=6, bands=3), ClassOutput(LABELS), **SIZES
    ),
    "flow": PerceiverConfig(FlowInput((5, 7), channels=3, width=6, bands=3), FlowOutput(), **SIZES),
    "audio": PerceiverConfig(AudioInput(35, 5, 3), ClassOutput(LABELS), **SIZES),
    "video": PerceiverConfig(VideoInput((2, 3, 5), patch=2, bands=3), ClassOutput(LABELS), **SIZES),
    "joined": JOINED,
}


def draw(name, batch=2):
    shapes = {
        "tokens": (11, 7),
        "pixels": (1, 5, 7),
        "trained pixels": (2, 5, 7),
        "convolution": (1, 17, 13),
        "flow": (2, 3, 5, 7),
        "audio": (35,),
        "video": (2, 3, 6, 10),
    }
    if name in ("text", "text class"):
        return torch.randint(0, 262, (batch, 13))
    if name == "joined":
        return {
            "sound": torch.randn(batch, 21),
            "film": torch.randn(batch, 2, 3, 6, 4),
            "label": torch.randn(batch, 3),
        }
    return torch.randn(batch, *shapes[name])


def make(name):
    torch.manual_seed(3)
    return Perceiver(CONFIGS[name]).eval()

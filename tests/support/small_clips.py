"""CLIPs small enough to build in a test."""

import torch

from regard.models import Clip, ClipConfig, ClipTextConfig, ClipVisionConfig
from regard.text import byte_tokenizer
from regard.vision import ImageProcessor


def small_clip(*, channels: int = 1, size: int = 12) -> Clip:
    """Build a CLIP with random weights, including norms and biases, that reads bytes and pictures."""
    torch.manual_seed(7)
    tokenizer = byte_tokenizer(limit=61)
    text = ClipTextConfig(
        width=20,
        layers=2,
        heads=5,
        inner=13,
        projection=7,
        vocabulary=tokenizer.vocabulary,
        max_length=61,
        end_id=tokenizer.frame[1][0],
        pad_id=tokenizer.pad_id,
    )
    vision = ClipVisionConfig(
        width=14, layers=2, heads=2, inner=13, projection=7, picture_size=(size, size), patch_size=(4, 4),
        channels=channels,
    )  # fmt: skip
    model = Clip(ClipConfig(text, vision)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "logit_scale":
                parameter += torch.randn_like(parameter) * 0.2
    model.text.tokenizer = tokenizer
    model.vision.processor = ImageProcessor(
        (size, size), channels=channels, mean=(0.5,) * channels, std=(0.25,) * channels
    )
    return model

"""Image classifiers small enough to build in a test."""

import torch

from regard.models import Cct, CctConfig, Cvt, CvtConfig, Perceiver, PerceiverImageEncoder, Vit, VitConfig
from regard.vision import ImageProcessor

CVT = {
    "widths": (6, 10),
    "depths": (1, 2),
    "heads": (3, 5),
    "embedding_kernels": (5, 3),
    "embedding_strides": (3, 2),
    "embedding_paddings": (2, 1),
    "projection_kernels": (3, 3),
    "key_value_strides": (2, 2),
    "key_value_paddings": (1, 1),
    "inner_ratios": (2.0, 1.5),
    "projection_biases": (True, False),
    "dropouts": (0.0, 0.0),
    "attention_dropouts": (0.0, 0.0),
    "stochastic_depths": (0.0, 0.0),
}
"""A CvT of two stages, without dropout."""


def image_classifier(labels=("columns", "plain", "rows"), *, channels: int = 1, size=(12, 8), **options) -> Vit:
    """Build a ViT with random weights, including norms and biases, and three labels."""
    torch.manual_seed(7)
    numbers = {"layers": 2, "width": 20, "heads": 5, "inner": 13, **options}
    return _fill(Vit(VitConfig(size, (4, 4), channels=channels, labels=labels, **numbers)), size, channels)


def _fill(model, size, channels):
    """Change all weights at random, norms and biases included, and add the processor."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    model.processor = ImageProcessor(size, channels=channels, mean=(0.5,) * channels, std=(0.25,) * channels)
    return model.eval()


def small_cct(labels=("columns", "plain", "rows"), *, size=(13, 9), **options) -> Cct:
    """Build a CCT with random weights, three labels, and a grid whose tokens are no whole pixels for odd sizes."""
    torch.manual_seed(11)
    numbers = {"layers": 2, "width": 20, "heads": 5, "inner": 13, "convolutions": 2, "tokenizer_width": 6, **options}
    return _fill(Cct(CctConfig(size, 1, labels=labels, **numbers)), size, 1)


def small_cvt(labels=("columns", "plain", "rows"), *, size=(26, 19), **options) -> Cvt:
    """Build a CvT of two stages with random weights: 9 x 7 tokens, then 5 x 4; its keys lie on 5 x 4 and 3 x 2."""
    torch.manual_seed(13)
    return _fill(Cvt(CvtConfig(size, 1, labels=labels, **(CVT | options))), size, 1)


def small_perceiver(reads, labels=("a", "b", "c"), **options) -> PerceiverImageEncoder:
    """Build a Perceiver of five latents with random weights, for the pictures of ``reads``, its input."""
    torch.manual_seed(17)
    sizes = {"latents": 5, "width": 8, "layers": 2, "heads": 2, "cross_heads": 1, **options}
    return _fill(PerceiverImageEncoder(Perceiver.classifier(reads, labels, **sizes)), reads.size, reads.channels)

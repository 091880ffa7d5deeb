"""Image classifiers small enough to build in a test."""

import torch

from regard.models import Vit, VitConfig
from regard.vision import ImageProcessor


def image_classifier(labels=("columns", "plain", "rows"), *, channels: int = 1, size=(12, 8), **options) -> Vit:
    """Build a ViT with random weights, including norms and biases, and three labels."""
    torch.manual_seed(7)
    numbers = {"layers": 2, "width": 20, "heads": 5, "inner": 13, **options}
    model = Vit(VitConfig(size, (4, 4), channels=channels, labels=labels, **numbers)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    model.processor = ImageProcessor(size, channels=channels, mean=(0.5,) * channels, std=(0.25,) * channels)
    return model

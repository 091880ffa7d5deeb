"""The sizes of a model in messages: its layers, and the number of its weights."""

from __future__ import annotations

from torch import nn


def describe_layers(layers: int, width: int) -> str:
    """Describe a stack, for example "4 layers of 128"."""
    return f"{layers} {'layer' if layers == 1 else 'layers'} of {width}"


def describe_weights(model: nn.Module) -> str:
    """Describe the number of weights, for example "12.3 million weights"."""
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    return f"{millions:.1f} million weights" if millions >= 0.1 else f"{millions:.2g} million weights"

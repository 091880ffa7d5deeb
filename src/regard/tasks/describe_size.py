"""The sizes of a model in messages: its layers, and the number of its weights."""

from __future__ import annotations

from torch import nn


def describe_layers(layers: int, width: int) -> str:
    """Describe a stack, for example "4 layers of 128"."""
    return f"{layers} {'layer' if layers == 1 else 'layers'} of {width}"


def describe_weights(model: nn.Module) -> str:
    """Describe the number of weights, for example "12.3 million weights"."""
    return f"{format_millions(sum(weight.numel() for weight in model.parameters()))} million weights"


def format_millions(number: int) -> str:
    """Format a number in millions: with one decimal, or two digits below a million."""
    millions = number / 1e6
    return f"{millions:.1f}" if millions >= 1 else f"{millions:.2g}"

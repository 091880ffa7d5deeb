"""Names of activations in the config.json of Hugging Face models, and ours."""

from __future__ import annotations

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}
"""Hugging Face's names of activations, and ours. Of several names for one activation, the first is written."""


def activation_to_hugging_face(activation: str) -> str:
    """Return Hugging Face's name of one of our activations."""
    return next(name for name, ours in ACTIVATIONS.items() if ours == activation)

"""Initial weights of BERT, GPT-2 and Llama types: normal with one standard deviation, and biases of 0."""

from __future__ import annotations

from torch import nn


def init_from_normal(model: nn.Module, deviation: float) -> None:
    """Draw the weights of all linear layers and embeddings, in the order of the modules, and set biases to 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

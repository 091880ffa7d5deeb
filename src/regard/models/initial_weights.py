"""Initial weights of BERT, GPT-2 and Llama types: normal with one standard deviation, and biases of 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

_DEVIATION, _WIDTH = 0.02, 768


def choose_deviation(width: int) -> float:
    """The standard deviation of the initial weights of a model of this width.

    BERT, GPT-2 and ViT base have 0.02 and a width of 768. An output of a linear layer is a sum of ``width``
    terms, so another width needs 0.02 sqrt(768 / width) for the same variance: He et al. 2015, "Delving deep into
    rectifiers", equation 10. With 0.02 a narrow model learns slowly at first.
    """
    return _DEVIATION * math.sqrt(_WIDTH / width)


def init_from_normal(model: nn.Module, deviation: float) -> None:
    """Draw the weights of all linear layers and embeddings, in the order of the modules, and set biases to 0."""
    draw_weights(model, lambda weight: nn.init.normal_(weight, std=deviation), nn.Linear, nn.Embedding)


def draw_weights(model: nn.Module, draw: Callable[[Tensor], object], *kinds: type[nn.Module]) -> None:
    """Draw the weights of all modules of these kinds, in their order, and set biases to 0."""
    for module in model.modules():
        if isinstance(module, kinds):
            draw(cast("Tensor", module.weight))
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(cast("Tensor", module.bias))

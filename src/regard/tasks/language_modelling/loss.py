"""The loss of a language model: the cross-entropy of the next token, summed over the tokens of blocks.

L = - sum_t log p(y_t | y_s .. y_t-1)        s is where the document of token t begins in its block
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.tasks.language_modelling.blocks import IGNORED, TokenBlocks
from regard.train.loss import smoothed_cross_entropy


def block_loss(
    model: nn.Module,
    blocks: TokenBlocks,
    *,
    absolute_positions: bool,
    device: torch.device,
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """The loss summed over the tokens of ``blocks``, in nats: a scalar.

    ``absolute_positions`` is ``CausalLanguageModel.has_absolute_positions``; ``model`` may be wrapped for several
    processes.
    """
    options: dict[str, Any] = {}
    if blocks.documents is not None:
        options["mask"] = masks.documents(blocks.documents)
        if absolute_positions and blocks.positions is not None:
            options["positions"] = blocks.positions.to(device)
    logits = model(blocks.ids.to(device), **options).logits
    return smoothed_cross_entropy(logits, blocks.labels.to(device), smoothing=smoothing, ignored=IGNORED)

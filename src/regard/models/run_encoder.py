"""The blocks of an encoder one after the other, or as one native call (``layers.stack_step``)."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from regard.layers.stack_step import encoder_stack
from regard.masks.base import Mask
from regard.models.run_layers import run_layers


def run_encoder(
    tokens: Tensor, layers: nn.ModuleList, mask: Mask | None, *, keep: bool, norm: nn.Module | None = None
) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """Return what ``run_layers`` returns for blocks that all have this mask."""
    last = None if type(norm) is nn.Identity else norm  # of norms behind the sublayers, the last one is a block's own
    outputs = encoder_stack(layers, last, tokens, mask)
    if outputs is not None:
        states = (tokens, *outputs)
        return states[-1], states if keep else None
    return run_layers(tokens, [partial(layer, mask=mask) for layer in layers], keep=keep, norm=norm)

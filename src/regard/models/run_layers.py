"""The layers of a stack one after the other, and the hidden states between them if they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from torch import Tensor

Layer: TypeAlias = Callable[[Tensor], Tensor]


def run_layers(
    tokens: Tensor, layers: Iterable[Layer], *, keep: bool, norm: Layer | None = None
) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """Return the output of the last layer, after the ``norm`` if there is one, and with ``keep`` all hidden states.

    These are the input, then each layer's output; the last one is the same tensor as the output.
    """
    kept = [tokens]
    for layer in layers:
        tokens = layer(tokens)
        if keep:
            kept.append(tokens)
    if norm is not None:
        tokens = kept[-1] = norm(tokens)
    return tokens, tuple(kept) if keep else None

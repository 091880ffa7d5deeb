"""The hidden states of some tokens of a batch, for models that compute logits where they are asked for."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from regard.copy_to_device import copy_to


def select_tokens(
    hidden: Float[Tensor, "batch length width"], where: Bool[Tensor, "batch length"]
) -> Float[Tensor, "tokens width"]:
    """Select the tokens where ``where`` is True, in row-major order.

    Their number is read from ``where``: on a CPU that takes no wait for the device of ``hidden``.
    """
    places = copy_to(where.flatten().nonzero()[:, 0], hidden.device)
    return hidden.flatten(0, 1).index_select(0, places)

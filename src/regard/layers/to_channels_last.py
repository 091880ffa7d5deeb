"""A map whose channels lie side by side in memory, as convolutions and poolings on a CPU read it fastest.

plane (batch, channels, height, width) -> the same numbers and shape, strides (height w c, 1, w c, c) for w columns and
c channels. Every convolution behind it then keeps that layout. With one channel the numbers do not move, but strides of
(h w, h w, w, 1) fit both layouts, and torch takes the slow one.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def to_channels_last(
    plane: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch channels height width"]:
    """Put the channels of a pixel side by side, on a CPU; elsewhere the map is returned unchanged."""
    if plane.device.type != "cpu":
        return plane
    batch, channels, height, width = plane.shape
    return plane.permute(0, 2, 3, 1).flatten(1).view(batch, height, width, channels).permute(0, 3, 1, 2)

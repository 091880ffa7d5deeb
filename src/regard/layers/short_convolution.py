"""A short causal convolution of each channel along the text, which mixers apply before attention.

    y_t = sum_{i = 0 .. kernel-1} w_i x_(t - kernel + 1 + i) + b        x before the text is 0

Its state in decoding are the last kernel - 1 inputs.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_flag, check_sizes, check_weights


@final
@explain_arguments
class ShortConvolution(nn.Module):
    """Causal convolution of each of ``channels`` along the text, with ``kernel`` weights, and a ``bias`` or none."""

    def __init__(self, channels: int, kernel: int, *, bias: bool = False) -> None:
        super().__init__()
        check_sizes(channels=channels, kernel=kernel)
        check_weights(channels=channels, kernel=kernel)
        check_flag("bias", bias)
        self.kernel = kernel
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel).uniform_(-(kernel**-0.5), kernel**-0.5))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(
        self,
        tokens: Float[Tensor, "batch length channels"],
        before: Float[Tensor, "batch earlier channels"] | None = None,
    ) -> tuple[Float[Tensor, "batch length channels"], Float[Tensor, "batch earlier channels"]]:
        """Return the convolved tokens, and the last kernel - 1 inputs, which the next call takes as ``before``."""
        if before is None:
            before = tokens.new_zeros(tokens.shape[0], self.kernel - 1, tokens.shape[2])
        inputs = torch.cat([before, tokens], dim=1)
        last = inputs[:, inputs.shape[1] - (self.kernel - 1) :]
        if tokens.shape[1] == 0:
            return tokens, last
        channels = self.weight.shape[0]
        convolved = nn.functional.conv1d(inputs.transpose(1, 2), self.weight, self.bias, groups=channels)
        return convolved.transpose(1, 2), last

    def extra_repr(self) -> str:
        """Format the sizes for ``repr``."""
        return f"{self.weight.shape[0]}, kernel={self.kernel}, bias={self.bias is not None}"

"""Convolutional projection: a token of a map and its neighbours, channel by channel, before attention projects them.

    y_c = norm(convolution_c(x_c))      for each channel c: K x K weights of its own, then batch norm

tokens (batch, rows * columns, width) -> (batch, rows' * columns', width), where a stride of s leaves every s-th row and
column. In training, batch norm takes mean and variance of a channel over all pictures of the batch, in evaluation the
averages from training; the batch is the joint batch of all processes.
Wu et al. 2021, "CvT: introducing convolutions to vision transformers", section 3.2 and equation 2.
"""

from __future__ import annotations

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import check_count, check_sizes, check_weights
from regard.layers.batch_norm_2d import BatchNorm2d


@final
class ConvolutionalProjection(nn.Module):
    """A depthwise convolution with batch norm, of tokens of ``width`` that lie on a map.

    ``padding`` is the number of rows and columns of zeros on each side of the map.
    """

    def __init__(self, width: int, kernel_size: int, *, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        check_sizes(width=width, kernel_size=kernel_size, stride=stride)
        check_count("padding", padding, minimum=0, maximum=kernel_size)
        check_weights(width=width, height=kernel_size, columns=kernel_size)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.convolution = nn.Conv2d(width, width, kernel_size, stride, padding, groups=width, bias=False)
        self.norm = BatchNorm2d(width, counted=True)

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"], rows: int, columns: int
    ) -> Float[Tensor, "batch projected width"]:
        """Project the tokens of a map of ``rows`` x ``columns``."""
        plane = tokens.transpose(1, 2).unflatten(2, (rows, columns))
        projected: Tensor = self.norm(self.convolution(plane))
        return projected.flatten(2).transpose(1, 2).contiguous()

    def count(self, side: int) -> int:
        """The rows, or columns, that are left of ``side`` of them."""
        return (side + 2 * self.padding - self.kernel_size) // self.stride + 1

"""Convolutional tokenizer: convolutions and pooling turn a picture into tokens, without cutting it into patches.

    x <- relu(maxpool(convolution(x)))      n times; the map of the last one, row by row, is the tokens

Each convolution has ``kernel_size`` x ``kernel_size`` weights, no bias, and zeros of half the kernel around its map;
each pooling takes the largest of 3 x 3 numbers at every second row and column. So a token sees pixels that its
neighbours see too, and tokens know where the edge of the picture is.
The paper pools relu(x): that is the same, since relu keeps the order of numbers, but of four times as many of them.
Hassani et al. 2021, "Escaping the big data paradigm with compact Transformers", section 3.3 and equation 3.
pixels (batch, channels, height, width) -> tokens (batch, rows * columns, width).
"""

from __future__ import annotations

from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_count, check_sizes, check_weights
from regard.layers.input_checks import check_pixels
from regard.layers.to_channels_last import to_channels_last
from regard.tensors import is_traced

MAX_CONVOLUTIONS = 16
"""Most convolutions of a tokenizer: each halves the picture, and 16 of them make one token of 65,536 pixels."""


@final
@explain_arguments
class ConvolutionalTokenizer(nn.Module):
    """Convolutions with pooling: a picture to tokens of ``width``.

    Args:
        channels: number of channels of a picture.
        width: size of a token.
        convolutions: number of convolutions, each with a pooling.
        kernel_size: height and width of a convolution.
        stride: step of a convolution, in pixels.
        inner: channels between convolutions.

    Raises OptionError for values out of range.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        convolutions: int = 1,
        kernel_size: int = 3,
        stride: int = 1,
        inner: int = 64,
    ) -> None:
        super().__init__()
        check_sizes(channels=channels, width=width, kernel_size=kernel_size, stride=stride, inner=inner)
        check_count("convolutions", convolutions, maximum=MAX_CONVOLUTIONS)
        largest = max(channels, width, inner)
        check_weights(inputs=largest, outputs=largest, height=kernel_size, columns=kernel_size)
        self.channels = channels
        widths = [channels, *[inner] * (convolutions - 1), width]
        built = [
            nn.Conv2d(before, after, kernel_size, stride, padding=kernel_size // 2, bias=False)
            for before, after in pairwise(widths)
        ]
        for convolution in built:
            nn.init.kaiming_normal_(convolution.weight)
        self.convolutions = nn.ModuleList(built)

    def forward(self, pixels: Tensor) -> Float[Tensor, "batch tokens width"]:
        """Compute the tokens of pictures (batch, channels, height, width), row by row.

        Raises ShapeError for other channels, DtypeError for integers.
        """
        first = self.convolutions[0].weight
        assert isinstance(first, Tensor)
        check_pixels(pixels, first, self.channels)
        if not is_traced():
            self.grid(*pixels.shape[2:])
        for convolution in self.convolutions:
            inner = convolution(to_channels_last(pixels))
            pixels = torch.relu(torch.max_pool2d(inner, kernel_size=3, stride=2, padding=1))
        return pixels.flatten(2).transpose(1, 2).contiguous()  # layers keep the layout of their tokens

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Count the rows and columns of tokens of a picture. Raises OptionError for a side that is no size."""
        check_sizes(height=height, width=width)
        return self._count(height), self._count(width)

    def _count(self, side: int) -> int:
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv2d)
            kernel, stride = convolution.kernel_size[0], convolution.stride[0]
            side = (side + 2 * (kernel // 2) - kernel) // stride + 1
            side = (side + 1) // 2
        return side

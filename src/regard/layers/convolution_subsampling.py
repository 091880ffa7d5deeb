"""Convolution subsampling: two convolutions over frames and bands make one token of four frames.

    h_1 = relu(conv_1(x)),  h_2 = relu(conv_2(h_1)),  token_t = W concat_bands(h_2[t]) + b

Gulati et al. 2020 (Conformer), section 2. Kernels are 3 x 3 with a stride of 2, and the edges are padded by one 0, so
``length`` frames become ceil(ceil(length / 2) / 2) tokens, and a sound has the same tokens whether it ends or is
followed by hidden frames: those are set to 0 before each convolution. Token t is visible if frame 4 t is.

features (batch, frames, bands) -> tokens (batch, tokens, width)
"""

from __future__ import annotations

from typing import cast, final

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_sizes, check_weights
from regard.layers.input_checks import check_visible_tokens
from regard.layers.to_channels_last import to_channels_last

STRIDE = 4
"""The number of frames of a token."""


@final
@explain_arguments
class ConvolutionSubsampling(nn.Module):
    """Frames of ``bands`` to a quarter as many tokens of ``width``, by convolutions with ``width`` channels."""

    def __init__(self, bands: int, width: int) -> None:
        super().__init__()
        check_sizes(bands=bands, width=width)
        self.bands = bands
        rows = -(-bands // STRIDE)
        check_weights(width=width, channels=width, rows=max(rows, 9))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, width, kernel_size=3, stride=2, padding=1) for channels in (1, width)
        )
        self.projection = nn.Linear(width * rows, width)

    @property
    def first_weight(self) -> Tensor:
        """The weight that multiplies the features."""
        return cast("nn.Conv2d", self.convolutions[0]).weight

    def forward(
        self, features: Float[Tensor, "batch frames bands"], visible: Bool[Tensor, "batch frames"] | None = None
    ) -> tuple[Float[Tensor, "batch tokens width"], Bool[Tensor, "batch tokens"] | None]:
        """Return the tokens, and which of them are visible.

        Raises ShapeError, DtypeError or DeviceError for features that do not fit.
        """
        check_visible_tokens(features, visible, self.bands, self.first_weight)
        hidden = to_channels_last(features[:, None])
        for convolution in self.convolutions:
            if visible is not None:
                hidden = hidden.masked_fill(~visible[:, None, :, None], 0.0)
                visible = visible[:, ::2]
            hidden = nn.functional.relu(cast("nn.Conv2d", convolution)(hidden))
        return self.projection(hidden.transpose(1, 2).flatten(2)), visible

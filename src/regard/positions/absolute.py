"""Absolute positional encodings, added to embeddings.

    sinusoidal    P[p, 2i] = sin(p / 10000^(2i/width)),  P[p, 2i+1] = cos(p / 10000^(2i/width))
    learned       P[p] = a trained vector

Vaswani et al. 2017, section 3.5; learned: Gehring et al. 2017, section 3.1. Both return (length, width), or (batch,
length, width) at positions (batch, length) that differ from text to text.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.devices import to_float64
from regard.errors import LARGEST_SIZE, OptionError, ShapeError, check_count, check_number, check_sizes
from regard.positions.base import AbsolutePosition, check_positions


@final
@explain_arguments
class Sinusoidal(AbsolutePosition):
    """Sinusoidal positional encoding: sines and cosines of decreasing frequency, for any length, without parameters.

    ``width`` must be even. ``base`` sets the longest wavelength, 2 pi base.
    """

    def __init__(self, width: int, *, base: float = 10000.0) -> None:
        super().__init__()
        check_count("width", width, minimum=0, maximum=LARGEST_SIZE)
        check_number("base", base, minimum=1.0)
        if width < 2 or width % 2:
            raise OptionError(
                "sinusoidal positions come in pairs",
                expected="an even width",
                got=str(width),
                do="use an even width",
            )
        self.width, self.base = width, float(base)
        # An empty buffer that moves with the module, so that the vectors get its device and dtype.
        self.register_buffer("dtype_and_device", torch.empty(0), persistent=False)
        self.dtype_and_device: Tensor

    def forward(self, length: int, *, offset: int = 0) -> Float[Tensor, "length width"]:
        """Compute the vectors of positions ``offset`` to ``offset + length - 1``, in the module's dtype."""
        check_positions(length, offset)
        return self._compute(torch.arange(offset, offset + length))

    def at(self, positions: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length width"]:
        """Compute the vectors of the position of each token, in the module's dtype."""
        return self._compute(positions)

    def _compute(self, positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape width"]:
        # float64: at position 100,000 a float32 angle is off by 0.004 radians
        places = to_float64(positions)
        exponents = torch.arange(0, self.width, 2, dtype=torch.float64, device=places.device) / self.width
        angles = places[..., None] * self.base**-exponents
        vectors = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(self.dtype_and_device.dtype)
        return copy_to(vectors, self.dtype_and_device.device)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"width={self.width}"


@final
@explain_arguments
class Learned(AbsolutePosition):
    """Learned positional embedding: one trained vector for each of ``max_length`` positions.

    ``deviation`` is the standard deviation of the initial vectors.
    """

    def __init__(self, max_length: int, width: int, *, deviation: float = 0.02) -> None:
        super().__init__()
        check_sizes(max_length=max_length, width=width)
        check_number("deviation", deviation, minimum=0.0)
        self.weight = nn.Parameter(torch.empty(max_length, width))
        nn.init.normal_(self.weight, std=float(deviation))

    def forward(self, length: int, *, offset: int = 0) -> Float[Tensor, "length width"]:
        """Return the vectors of positions ``offset`` to ``offset + length - 1``. Raises ShapeError beyond the last."""
        check_positions(length, offset)
        if offset < 0 or offset + length > self.max_length:
            raise ShapeError(
                "not enough learned positions",
                expected=f"at most {self.max_length} tokens",
                got=f"{length} tokens from position {offset}",
                do="shorten the text (truncation is never automatic), or build the model with a larger max_length",
            )
        return self.weight[offset : offset + length]

    def at(self, positions: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length width"]:
        """Look up the vectors of the position of each token, 0 to ``max_length - 1``."""
        return functional.embedding(copy_to(positions, self.weight.device), self.weight)

    @property
    def max_length(self) -> int:
        """The number of trained vectors."""
        return self.weight.shape[0]

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return "max_length={}, width={}".format(*self.weight.shape)

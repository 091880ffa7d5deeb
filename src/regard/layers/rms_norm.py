"""Root mean square normalisation.

    y = x / sqrt(mean(x^2) + epsilon) * (offset + w)            the mean is over the last dimension

Zhang and Sennrich 2019, "Root mean square layer normalization", equation 4. With an offset of 1 the trained weight is
near 0, so that weight decay pulls the gain towards 1, as in Gemma. Shapes: (.., width) -> (.., width).
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_number, check_size
from regard.validation import check_tokens


@final
@explain_arguments
class RMSNorm(nn.Module):
    """Root mean square normalisation of tokens of ``width``, computed in float32 for half precision.

    ``offset`` is added to the trained weight. The initial weight is 1 - ``offset``.
    """

    def __init__(self, width: int, *, epsilon: float = 1e-6, offset: float = 0.0) -> None:
        super().__init__()
        check_size("width", width)
        check_number("epsilon", epsilon, minimum=0.0)
        check_number("offset", offset)
        self.epsilon, self.offset = float(epsilon), float(offset)
        self.weight = nn.Parameter(torch.full((width,), 1.0 - self.offset))

    def forward(self, tokens: Tensor) -> Tensor:
        """Normalise tokens (.., width). Raises ShapeError for another width."""
        weight = self.weight
        width = weight.shape[0]
        check_tokens("tokens", tokens, f"(.., {width})")
        if tokens.dim() < 1 or tokens.shape[-1] != width:
            raise ShapeError(
                "tokens do not fit the norm",
                expected=f"(.., {width})",
                got=str(tuple(tokens.shape)),
                do="build the norm with the width of its tokens",
            )
        if self.offset == 0.0:
            gain: Tensor = weight
        else:  # a half precision sum would lose the last digits of a weight near 0
            gain = self.offset + (weight.float() if weight.dtype.itemsize < 4 else weight)
        if tokens.dtype == gain.dtype:
            return torch.rms_norm(tokens, (width,), gain, self.epsilon)
        wide = torch.promote_types(tokens.dtype, torch.float32)
        normalised = torch.rms_norm(tokens.to(wide), (width,), None, self.epsilon)
        return (normalised * gain).to(tokens.dtype)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{len(self.weight)}, epsilon={self.epsilon:g}, offset={self.offset:g}"

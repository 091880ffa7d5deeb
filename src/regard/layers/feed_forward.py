"""Position-wise feed-forward layer: applied to each token separately, plain or gated.

    FFN(x)   = act(x W_1 + b_1) W_2 + b_2
    gated(x) = (act(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2

Vaswani et al. 2017, equation 2; Shazeer 2020, "GLU variants improve Transformer", equation 6. Shapes:
(batch, length, width) -> (batch, length, inner) -> (batch, length, width).
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_choice, check_flag, check_sizes, check_weights
from regard.kernels.autocast import to_autocast_dtype
from regard.layers.dropout import Dropout
from regard.layers.projection import linear_activation
from regard.validation import check_tokens

_PLAIN = ("relu", "gelu", "gelu_tanh", "silu", "relu_squared", "quick_gelu")
_GATED = {"glu": "sigmoid", "reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
"""The gate's activation, by the name of the gated variant."""
ACTIVATIONS = (*_PLAIN, *_GATED)
"""Names of all activations of ``FeedForward``."""


@final
@explain_arguments
class FeedForward(nn.Module):
    """Feed-forward layer: two linear layers with an activation between, or three if the activation is gated.

    ``activation`` is one of ``ACTIVATIONS``; ``dropout`` applies to the inner layer, in training.
    """

    def __init__(
        self, width: int, inner: int, *, activation: str = "relu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        check_sizes(width=width, inner=inner)
        check_weights(width=width, inner=inner)
        check_choice("activation", activation, ACTIVATIONS)
        check_flag("bias", bias)
        self.activation = activation
        self.up = nn.Linear(width, inner, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if activation in _GATED else None
        self.dropout = Dropout(dropout)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens (batch, length, width) to the same shape. Raises ShapeError for another width."""
        up, gate = self.up, self.gate
        check_tokens("tokens", tokens, f"(batch, length, {up.in_features})")
        if tokens.dim() < 1 or tokens.shape[-1] != up.in_features:
            raise ShapeError(
                "tokens do not fit the feed-forward layer",
                expected=f"(batch, length, {up.in_features})",
                got=str(tuple(tokens.shape)),
                do="build the layer with the width of its tokens",
            )
        if gate is None:
            inner = linear_activation(tokens, up, self.inner_activation)
        else:
            tokens = to_autocast_dtype(tokens)
            inner = linear_activation(tokens, gate, self.inner_activation) * linear_activation(tokens, up)
        return linear_activation(self.dropout(inner), self.down)

    @property
    def inner_activation(self) -> str:
        """The activation of the inner layer, or of the gate if there is one."""
        return _GATED.get(self.activation, self.activation)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"activation={self.activation!r}"

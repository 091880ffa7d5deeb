"""The head of a masked language model: logits of the token at each position.

    logits = W norm(act(V h + a)) + b

W is the matrix of the token embedding if the two are tied. Devlin et al. 2019, "BERT: pre-training of deep
bidirectional transformers", section 3.1, task 1; the layer V before the output is from the published code.
Shapes: (.., width) -> (.., vocabulary).
"""

from __future__ import annotations

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.projection import linear_activation


@final
class MaskedLanguageHead(nn.Module):
    """The head of a masked language model for hidden states of ``width``, with its ``activation`` and ``norm``.

    ``bias`` and ``output_bias`` say whether the first and the last linear layer have one.
    """

    def __init__(
        self,
        width: int,
        vocabulary: int,
        *,
        activation: str,
        norm: nn.Module,
        bias: bool = True,
        output_bias: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.transform = nn.Linear(width, width, bias=bias)
        self.norm = norm
        self.output = nn.Linear(width, vocabulary, bias=output_bias)

    def forward(self, hidden: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows vocabulary"]:
        """Compute the logits of the token at each position from the hidden states after the last layer."""
        return linear_activation(self.norm(linear_activation(hidden, self.transform, self.activation)), self.output)

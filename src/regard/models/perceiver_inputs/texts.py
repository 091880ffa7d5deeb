"""Vectors of another model, and texts, as inputs of a Perceiver.

TokenInput    vectors                       as they are
TextInput     token ids, such as bytes      embedding + trained position
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_weights
from regard.fields import SIZE, declare
from regard.models.check_token_ids import check_token_ids
from regard.models.hyperparameters import model_field, size_field
from regard.models.perceiver_inputs.base import InputLayer, PerceiverInput, TokenwiseLayer, check_floats
from regard.text.byte_tokenizer import VOCABULARY


@final
@explain_arguments
@dataclass(frozen=True)
class TokenInput(PerceiverInput):
    """Vectors (batch, tokens, width), as they are."""

    kind: ClassVar[str] = "tokens"
    width: int = field(metadata=declare("size of a vector", **SIZE))

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _TokenLayer(self)


@final
@explain_arguments
@dataclass(frozen=True)
class TextInput(PerceiverInput):
    """Token ids (batch, length), by default the bytes of ``regard.text.byte_tokenizer``, of at most ``max_length``."""

    kind: ClassVar[str] = "text"
    vocabulary: int = size_field(VOCABULARY, "number of tokens")
    max_length: int = size_field(2048, "number of positions")
    width: int = size_field(768, "size of an embedded token")
    pad_id: int = model_field(0, "the padding token", below="vocabulary")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(rows=max(self.vocabulary, self.max_length), width=self.width)

    def build(self, deviation: float) -> InputLayer:
        """Make the embeddings of ids and positions."""
        del deviation
        return TextLayer(self)


@final
class _TokenLayer(TokenwiseLayer):
    def __init__(self, options: TokenInput) -> None:
        super().__init__(options, options.width)

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        check_floats(inputs, ("batch", "tokens", self.options.width))
        return inputs, (inputs.shape[1],)


@final
class TextLayer(TokenwiseLayer):
    """Embedding of token ids and of their positions, added."""

    def __init__(self, options: TextInput) -> None:
        super().__init__(options, options.width)
        self.token_embedding = nn.Embedding(options.vocabulary, options.width)
        self.position_embedding = nn.Embedding(options.max_length, options.width)

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        """Check ids (batch, length), at most ``max_length`` of them."""
        check_token_ids("ids", inputs, self.options.vocabulary)
        length = inputs.shape[1]
        if not 1 <= length <= self.options.max_length:
            raise ShapeError(
                "ids have no tokens" if length == 0 else "the text is too long",
                expected=f"ids (batch, length) with a length from 1 to {self.options.max_length}",
                got=str(tuple(inputs.shape)),
                do="shorten the text (truncation is never automatic), or build the model with a larger max_length",
            )
        return inputs, (length,)

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        """Add the embeddings of ids and positions."""
        embedded: Tensor = self.token_embedding(features) + self.position_embedding.weight[: grid[0]]
        return embedded

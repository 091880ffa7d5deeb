"""An output of a Perceiver for each position of a text: logits of its token, or a vector.

Jaegle et al. 2021, "Perceiver IO", appendix F.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.layers import CrossAttentionBlock, NoResidual
from regard.models.hyperparameters import size_field
from regard.models.perceiver_blocks import BlockOptions, make_cross_block
from regard.models.perceiver_inputs import InputLayer, InputTokens, TextLayer, TrainedPositions
from regard.models.perceiver_outputs.base import Decoded, OutputLayer, OutputQueries, check_at, wrong_input_error


@final
@explain_arguments
@dataclass(frozen=True)
class TextOutput(OutputQueries):
    """Logits of the token at each position, (batch, length, vocabulary), for masked language models.

    The last layer is the embedding of the ``TextInput``, and a bias. ``at`` holds positions (n,); None is all of the
    input's.
    """

    kind: ClassVar[str] = "text"
    heads: int = size_field(8, "number of heads")
    query_key_width: int = size_field(256, "size of all heads of queries and keys")

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the queries and their block."""
        if not isinstance(source, TextLayer):
            raise wrong_input_error(self, "a TextInput", source)
        return _TextLayer(self, options, source)


@final
@explain_arguments
@dataclass(frozen=True)
class PositionOutput(OutputQueries):
    """A vector for each position of a text, (batch, length, width of the ``TextInput``): a text encoder.

    As ``TextOutput`` without its last layer. ``at`` holds positions (n,); None is all of the input's.
    """

    kind: ClassVar[str] = "positions"
    heads: int = size_field(8, "number of heads")
    query_key_width: int = size_field(256, "size of all heads of queries and keys")

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the queries and their block."""
        if not isinstance(source, TextLayer):
            raise wrong_input_error(self, "a TextInput", source)
        return _PositionLayer(self, options, source)


@final
class _TextLayer(OutputLayer):
    def __init__(self, output: TextOutput, options: BlockOptions, source: TextLayer) -> None:
        super().__init__()
        self.queries = TrainedPositions(source.options.max_length, source.width, options.deviation)
        self.block = _make_position_block(output, options, source)
        self.last = _Bias(source.options.vocabulary)

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        assert isinstance(source, TextLayer), "build checks it"
        decoded = self.block(_choose_positions(self.queries(), latents, tokens, at), latents)
        return Decoded(nn.functional.linear(decoded, source.token_embedding.weight, self.last.bias))


@final
class _PositionLayer(OutputLayer):
    def __init__(self, output: PositionOutput, options: BlockOptions, source: TextLayer) -> None:
        super().__init__()
        self.queries = TrainedPositions(source.options.max_length, source.width, options.deviation)
        self.block = _make_position_block(output, options, source)

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        del source
        return Decoded(self.block(_choose_positions(self.queries(), latents, tokens, at), latents))


def _make_position_block(
    output: TextOutput | PositionOutput, options: BlockOptions, source: TextLayer
) -> CrossAttentionBlock:
    return make_cross_block(
        options,
        width=source.width,
        memory_width=options.latent_width,
        heads=output.heads,
        residual=NoResidual,
        query_key_width=output.query_key_width,
        value_width=source.width,
    )


def _choose_positions(queries: Tensor, latents: Tensor, tokens: InputTokens, at: Any) -> Tensor:
    """The queries of all positions of the input, or of those ``at``, for each row of the batch."""
    chosen = queries[: tokens.tokens.shape[1]] if at is None else queries[check_at("at", at, len(queries))]
    return chosen.expand(latents.shape[0], -1, -1)


@final
class _Bias(nn.Module):
    """The bias of a last layer whose matrix is the embedding."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

"""Outputs of a Perceiver of one kind each: labels, positions of a text, pixels.

    ClassOutput      logits of labels, from one trained query
    TextOutput       logits of the token at each position of a text        appendix F of the paper
    PositionOutput   a vector for each position of a text
    FlowOutput       optical flow: the tokens of the input are queries     appendix H

Jaegle et al. 2021, "Perceiver IO".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.layers import CrossAttentionBlock, NoResidual, PreNorm
from regard.layers.projection import linear_activation
from regard.models.hyperparameters import model_field, size_field
from regard.models.perceiver_blocks import BlockOptions, make_cross_block
from regard.models.perceiver_inputs import FlowInput, InputLayer, InputTokens, TextLayer, TrainedPositions
from regard.models.perceiver_outputs.base import (
    OUTPUT_LABELS,
    Decoded,
    OutputLayer,
    OutputQueries,
    check_at,
    check_no_choice,
    wrong_input_error,
)


@final
@explain_arguments
@dataclass(frozen=True)
class ClassOutput(OutputQueries):
    """Logits of labels, (batch, labels), from one trained query with ``heads`` heads."""

    kind: ClassVar[str] = "class"
    labels: tuple[str, ...] = field(default=(), metadata=OUTPUT_LABELS)
    heads: int = size_field(1, "number of heads")

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the query, its block and the last layer."""
        del source
        return _ClassLayer(self, options)


@final
class _ClassLayer(OutputLayer):
    def __init__(self, output: ClassOutput, options: BlockOptions) -> None:
        super().__init__()
        width = options.latent_width
        self.queries = TrainedPositions(1, width, options.deviation)
        self.block = make_cross_block(options, width=width, memory_width=width, heads=output.heads, residual=PreNorm)
        self.last = nn.Linear(width, len(output.labels))

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        del source, tokens
        check_no_choice(at)
        pooled = self.block(self.queries().expand(latents.shape[0], -1, -1), latents)[:, 0]
        return Decoded(linear_activation(pooled, self.last), pooled)


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


@final
@explain_arguments
@dataclass(frozen=True)
class FlowOutput(OutputQueries):
    """Numbers for each token of the input, such as the motion of each pixel: (batch, height, width, channels).

    ``at`` holds the indices of pixels (n,): the result is then (batch, n, channels).
    """

    kind: ClassVar[str] = "flow"
    channels: int = size_field(2, "numbers of a pixel")
    divisor: float = model_field(100.0, "what all numbers are divided by", above=0.0)

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the block and the last layer."""
        read = getattr(source, "options", None)
        if not isinstance(read, FlowInput):
            raise wrong_input_error(self, "a FlowInput", source)
        return _FlowLayer(self, options, source, read.size)


@final
class _FlowLayer(OutputLayer):
    def __init__(self, output: FlowOutput, options: BlockOptions, source: InputLayer, grid: tuple[int, int]) -> None:
        super().__init__()
        self.divisor, self.grid = output.divisor, grid
        width = source.width
        self.block = make_cross_block(
            options, width=width, memory_width=options.latent_width, heads=1, residual=NoResidual
        )
        self.last = nn.Linear(width, output.channels)

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        del source
        queries = tokens.tokens
        if at is not None:
            queries = queries[:, check_at("at", at, queries.shape[1])]
        flow = linear_activation(self.block(queries, latents), self.last) / self.divisor
        return Decoded(flow.unflatten(1, self.grid) if at is None else flow)

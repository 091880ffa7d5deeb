"""Logits of labels as the output of a Perceiver, from one trained query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.layers import PreNorm
from regard.layers.projection import linear_activation
from regard.models.hyperparameters import size_field
from regard.models.perceiver_blocks import BlockOptions, make_cross_block
from regard.models.perceiver_inputs import InputLayer, InputTokens, TrainedPositions
from regard.models.perceiver_outputs.base import (
    OUTPUT_LABELS,
    Decoded,
    OutputLayer,
    OutputQueries,
    check_no_choice,
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

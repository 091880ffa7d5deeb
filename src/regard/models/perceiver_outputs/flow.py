"""Optical flow as the output of a Perceiver: the tokens of the input are the queries.

Jaegle et al. 2021, "Perceiver IO", appendix H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.layers import NoResidual
from regard.layers.projection import linear_activation
from regard.models.hyperparameters import model_field, size_field
from regard.models.perceiver_blocks import BlockOptions, make_cross_block
from regard.models.perceiver_inputs import FlowInput, InputLayer, InputTokens
from regard.models.perceiver_outputs.base import Decoded, OutputLayer, OutputQueries, check_at, wrong_input_error


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

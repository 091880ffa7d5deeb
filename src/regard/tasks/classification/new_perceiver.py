"""The hyperparameters of a new Perceiver that reads texts byte by byte, in one flat config that ``--set`` can address.

Jaegle et al. 2021, "Perceiver IO: a general architecture for structured inputs and outputs", section 4.1: UTF-8 bytes,
a trained vector for each and for its position, and no tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.models import PerceiverConfig, PerceiverTextEncoder, PositionOutput, TextInput

DEFAULT_MOST_BYTES = 2048
"""The positions of the published model."""


@final
@dataclass(frozen=True)
class TextPerceiverConfig:
    """The hyperparameters of a text encoder.

    Args:
        max_length: positions of the input and of the queries: the most bytes of a text, and two special tokens.
        input_width: size of the vector of a byte, and of a hidden state.
        latents, width, layers, repeats, heads, cross_heads, query_key_width, value_width, widening, cross_widening,
            activation, dropout: as in ``PerceiverConfig``.
        query_heads: heads of the queries of positions.

    ``build`` raises as ``PerceiverConfig`` and its parts.
    """

    max_length: int = DEFAULT_MOST_BYTES
    input_width: int = 64
    latents: int = 32
    width: int = 128
    layers: int = 3
    repeats: int = 1
    heads: int = 4
    cross_heads: int = 4
    query_heads: int = 4
    query_key_width: int | None = None
    value_width: int | None = None
    widening: int = 2
    cross_widening: int = 2
    activation: str = "gelu"
    dropout: float = 0.1

    def build(self) -> PerceiverTextEncoder:
        """Make the encoder, with random weights and the tokenizer of bytes."""
        return PerceiverTextEncoder(
            PerceiverConfig(
                TextInput(max_length=self.max_length, width=self.input_width),
                PositionOutput(self.query_heads, self.query_key_width or self.input_width),
                latents=self.latents,
                width=self.width,
                layers=self.layers,
                repeats=self.repeats,
                heads=self.heads,
                cross_heads=self.cross_heads,
                query_key_width=self.query_key_width,
                value_width=self.value_width,
                widening=self.widening,
                cross_widening=self.cross_widening,
                activation=self.activation,
                dropout=self.dropout,
            )
        )

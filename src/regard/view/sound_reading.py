"""All data that the views show for one sound: its log-mel spectrogram, and the attention over its tokens.

A token is some frames of the spectrogram, four of a Conformer, and token 0 begins with the sound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float32

from regard.arguments import explain_arguments
from regard.audio import AudioProcessor
from regard.errors import ShapeError
from regard.fields import repr_of_fields
from regard.view.attention_layer import AttentionLayer


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class SoundReading:
    """The attention of one model over one sound.

    Args:
        name: the name of the sound, such as that of its file.
        features: (frames, bands), what the model saw.
        processor: how they were made.
        frames_per_token: frames from one token to the next; the last token may have fewer.
        layers: the attention layers, in order, each with as many queries and keys.
        probabilities: the labels and their probabilities, the most probable first; () without a head that classifies.

    Raises ShapeError for layers with other tokens.
    """

    __repr__ = repr_of_fields

    name: str
    features: Float32[np.ndarray, "frames bands"]
    processor: AudioProcessor
    frames_per_token: int
    layers: tuple[AttentionLayer, ...]
    probabilities: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        for layer in self.layers:
            if (layer.queries, layer.keys) != (self.tokens, self.tokens):
                raise ShapeError(
                    f"{layer.name} does not match the tokens of the sound",
                    expected=f"{self.tokens} queries and keys",
                    got=f"{layer.queries} queries and {layer.keys} keys",
                    do="record the model with this sound alone",
                )

    @property
    def tokens(self) -> int:
        """The number of tokens of each layer."""
        return -(-len(self.features) // self.frames_per_token)

    @property
    def seconds_per_token(self) -> float:
        """The time from one token to the next."""
        return self.frames_per_token * self.processor.hop / self.processor.rate

    def name_of(self, token: int) -> str:
        """The name of a token: the time at which it begins, such as "0.24 s"."""
        return f"{token * self.seconds_per_token:.2f} s"

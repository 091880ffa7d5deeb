"""The duplication task: sequences 0 w 0 w of random symbols, of which the second w is predicted.

Kitaev et al. 2020 (Reformer), section 2.1: w has 511 symbols from 1 to 127, a sequence 1,024, and the model one layer
of width 256 with 4 heads and a feed-forward layer of 256. A token can be predicted only by attention to its first copy.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from regard import masks
from regard.layers import decoder_block
from regard.mechanisms import Reformer
from regard.positions import Learned

SYMBOLS = 127
SIZES = {"width": 256, "heads": 4, "inner": 256}


def draw_sequences(batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Draw sequences (batch, length) 0 w 0 w; ``length`` is even."""
    words = torch.randint(1, SYMBOLS + 1, (batch, length // 2 - 1), generator=generator)
    start = torch.zeros(batch, 1, dtype=torch.long)
    return torch.cat([start, words, start, words], dim=1)


@final
class DuplicationModel(nn.Module):
    """One causal block between an embedding with learned positions and the logits of the next symbol."""

    def __init__(self, length: int, mechanism: Reformer) -> None:
        super().__init__()
        width = SIZES["width"]
        self.embedding = nn.Embedding(SYMBOLS + 1, width)
        self.position = Learned(length, width)
        # As small as the positions: only they tell which symbol to copy, and the norm divides by the size of their sum.
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.block = decoder_block(
            width, SIZES["heads"], SIZES["inner"], norm="pre", mechanism=mechanism, cross_attention=False
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS + 1)

    def forward(self, sequences: Tensor) -> Tensor:
        """Compute the logits (batch, half, symbols) of the second w, from sequences (batch, length)."""
        read = sequences[:, :-1]
        tokens = self.block(self.embedding(read) + self.position(read.shape[1]), mask=masks.causal())
        logits: Tensor = self.head(self.norm(tokens[:, sequences.shape[1] // 2 :]))
        return logits


def loss_of(model: DuplicationModel, sequences: Tensor) -> Tensor:
    """Compute the mean cross-entropy of the symbols of the second w."""
    labels = sequences[:, sequences.shape[1] // 2 + 1 :]
    return nn.functional.cross_entropy(model(sequences).flatten(0, 1), labels.flatten())


@torch.no_grad()
def accuracy(model: DuplicationModel, mechanism: Reformer, sequences: Tensor, rounds: int) -> float:
    """Compute the share of symbols of the second w that are predicted, with so many hash rounds."""
    trained, mechanism.rounds = mechanism.rounds, rounds
    parts = [model(part).argmax(-1) == part[:, part.shape[1] // 2 + 1 :] for part in sequences.split(16)]
    mechanism.rounds = trained
    return float(torch.cat(parts).double().mean())

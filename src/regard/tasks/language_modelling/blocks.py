"""Training examples of a language model: blocks of tokens, each with a label: the token after it, or the token itself.

    several documents    shuffled, joined, and cut into blocks of n tokens; a token attends only to its own document,
                         and positions restart with each document (Krell et al. 2021, "Efficient sequence packing")
    one document         blocks of n tokens at random offsets; an epoch has as many tokens as the document

    inputs  y_0 .. y_n-1,    labels  y_1 .. y_n          y_0 is the start token of a document, y_n may be its end token
                          or labels  y_0 .. y_n-1        for a model that fills in masked tokens (lookahead 0)

So no token is padding, but for the last block of an epoch. A document that crosses the end of a block goes on in the
next one, without its beginning. The blocks of an epoch depend on (seed, epoch) alone, so an interrupted run resumes
with exactly the next batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.tasks.numbered_batches import Epochs
from regard.tasks.sentences import Indices, Sentences

Frame: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids before and after a text."""
IGNORED = -100
"""The label of padding."""
_NO_DOCUMENT = -1
"""The document of padding."""


@final
@dataclass(frozen=True, eq=False)
class TokenBlocks:
    """Blocks as tensors (rows, length): input ids and labels; and where documents share a block, the number of the
    document of each token and the token's position in it, else None."""

    ids: Int[Tensor, "rows length"]
    labels: Int[Tensor, "rows length"]
    documents: Int[Tensor, "rows length"] | None = None
    positions: Int[Tensor, "rows length"] | None = None

    def unpacked(self) -> TokenBlocks:
        """The part of each document in a row of its own, padded on the right with tokens without a label."""
        if self.documents is None:
            return self
        keys = self.documents + (self.documents.max() + 2) * torch.arange(len(self.ids))[:, None]
        _, lengths = torch.unique_consecutive(keys.flatten(), return_counts=True)
        ids, labels = (
            pad_sequence(tokens.flatten().split(lengths.tolist()), batch_first=True, padding_value=padding)
            for tokens, padding in ((self.ids, 0), (self.labels, IGNORED))
        )
        has_labels = (labels != IGNORED).any(dim=1)
        return TokenBlocks(ids[has_labels], labels[has_labels])


@final
@dataclass(frozen=True, eq=False)
class BlockBatch:
    """The blocks of a batch: where each begins, (rows,), and the order of the documents in its epoch.

    ``seed`` is for what is drawn for the batch, such as masks: that of the run, the epoch, and the batch's number.
    """

    begins: Indices
    order: Indices
    seed: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.begins)


class Blocks(Epochs[BlockBatch], ABC):
    """The blocks of documents: ``length`` tokens each, in batches of ``size`` blocks.

    ``lookahead`` is by how much labels are ahead of inputs: 1 for the next token, 0 for the token itself.
    """

    def __init__(self, documents: Sentences, *, length: int, size: int, seed: int, lookahead: int = 1) -> None:
        super().__init__(size=size, seed=seed)
        self.documents, self.length, self.lookahead = documents, length, lookahead

    @property
    def predictions(self) -> int:
        """The number of inputs with a label: of each document all tokens, but for the last ``lookahead``."""
        return int(np.maximum(self.documents.lengths - self.lookahead, 0).sum())

    def draw_batches(self, number: int) -> list[BlockBatch]:
        """Draw the blocks of an epoch."""
        begins, order = self._draw_epoch(np.random.default_rng([self.seed, number]))
        return [BlockBatch(part, order, (self.seed, number, place)) for place, part in enumerate(begins)]

    @abstractmethod
    def _draw_epoch(self, generator: np.random.Generator) -> tuple[Sequence[Indices], Indices]:
        """Draw where the blocks of each batch of an epoch begin, and the order of the documents."""

    @abstractmethod
    def tokens(self, batch: BlockBatch) -> int:
        """The number of predictions of a batch."""

    @abstractmethod
    def tensors(self, batch: BlockBatch, rows: Indices) -> TokenBlocks:
        """Build the tensors of ``rows``, some of the blocks of a batch."""


@final
class RandomOffsetBlocks(Blocks):
    """Blocks at random offsets of one document, each between the tokens of ``frame``, such as [CLS] and [SEP]."""

    def __init__(
        self, documents: Sentences, *, length: int, size: int, seed: int, lookahead: int = 1, frame: Frame = ((), ())
    ) -> None:
        super().__init__(documents, length=length, size=size, seed=seed, lookahead=lookahead)
        self.frame = frame
        self._inner = length - sum(map(len, frame))  # tokens of the document in a block

    def _draw_epoch(self, generator: np.random.Generator) -> tuple[Sequence[Indices], Indices]:
        """Draw the offsets of all blocks of the epoch."""
        steps = max(1, self.predictions // (self.size * self._inner))
        begins = generator.integers(0, self.predictions - self._inner + 1, size=(steps, self.size))
        return list(begins), np.zeros(1, dtype=np.int64)

    def tokens(self, batch: BlockBatch) -> int:
        """The number of tokens of the blocks."""
        return len(batch) * self.length

    def tensors(self, batch: BlockBatch, rows: Indices) -> TokenBlocks:
        """Read the blocks at their offsets."""
        places = batch.begins[rows][:, None] + np.arange(self._inner + self.lookahead)
        ids = self.documents.ids[places].astype(np.int64)
        return TokenBlocks(self._add_frame(ids[:, : self._inner]), self._add_frame(ids[:, self.lookahead :]))

    def _add_frame(self, ids: Int[np.ndarray, "rows inner"]) -> Int[Tensor, "rows length"]:
        sides = (np.tile(np.array(side, dtype=np.int64), (len(ids), 1)) for side in self.frame)
        before, after = sides
        return torch.from_numpy(np.concatenate([before, ids, after], axis=1))


@final
class PackedBlocks(Blocks):
    """Blocks of shuffled documents, joined and cut."""

    def _draw_epoch(self, generator: np.random.Generator) -> tuple[Sequence[Indices], Indices]:
        """Shuffle the documents, cut them into blocks, and shuffle the blocks."""
        order = generator.permutation(len(self.documents))
        begins = np.arange(0, self.predictions, self.length)
        shuffled = generator.permutation(begins)
        return [shuffled[first : first + self.size] for first in range(0, len(begins), self.size)], order

    def tokens(self, batch: BlockBatch) -> int:
        """The number of tokens of the blocks, without padding."""
        return int(np.minimum(self.length, self.predictions - batch.begins).sum())

    def tensors(self, batch: BlockBatch, rows: Indices) -> TokenBlocks:
        """Read the blocks from the joined documents."""
        counts = np.maximum(self.documents.lengths[batch.order] - self.lookahead, 0)
        ends = np.cumsum(counts)  # of the documents in the joined sequence of inputs
        begins = batch.begins[rows][:, None]
        places = begins + np.arange(self.length)
        is_padding = places >= self.predictions
        places = np.minimum(places, self.predictions - 1)
        document = np.searchsorted(ends, places, side="right")
        start = ends[document] - counts[document]
        flat = self.documents.offsets[batch.order[document]] + places - start
        ids = self.documents.ids[flat].astype(np.int64)
        labels = np.where(is_padding, IGNORED, self.documents.ids[flat + self.lookahead].astype(np.int64))
        document = np.where(is_padding, _NO_DOCUMENT, document)
        if (document == document[:, :1]).all():  # no mask is needed
            return TokenBlocks(torch.from_numpy(ids), torch.from_numpy(labels))
        positions = np.where(is_padding, 0, places - np.maximum(start, begins))
        return TokenBlocks(*map(torch.from_numpy, (ids, labels, document, positions)))


def make_blocks(
    documents: Sentences, *, length: int, size: int, seed: int, lookahead: int = 1, frame: Frame = ((), ())
) -> Blocks:
    """Make the blocks of documents: at random offsets of a single one, else packed.

    A single document that is shorter than ``length`` gives blocks of its own length. ``frame`` are the tokens around
    each block of a single document; of several, each has its own already.
    """
    options = {"size": size, "seed": seed, "lookahead": lookahead}
    if len(documents) > 1:
        return PackedBlocks(documents, length=length, **options)
    whole = int(documents.lengths[0]) - lookahead + sum(map(len, frame))
    return RandomOffsetBlocks(documents, length=min(length, whole), frame=frame, **options)

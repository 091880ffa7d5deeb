"""Word alignments from the cross-attention weights of a translator.

    W_ij = 1/|T_i| sum_{t in T_i} sum_{s in S_j} w_ts       word weights from piece weights
    (i, j) is a link where j = argmax_k W_ik                the source word with the largest weight

T_i are the pieces of target word i, S_j the pieces of source word j. Attention to a word of several pieces is their
sum, attention from one is their mean: Clark et al. 2019, "What does BERT look at?", section 4.1; for translation:
Zenkel et al. 2019, "Adding interpretable attention to neural translation models improves word alignment". Weights are
(target, source).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import DataError, OptionError, ShapeError
from regard.text.alignments.alignment import Alignment


def links(weights: Float[Tensor, "target source"], *, threshold: float = 0.0) -> Alignment:
    """Link each target word to its source word of largest weight (the first of equals) if it exceeds ``threshold``.

    A target word whose weights are all 0 gets no link. Raises DataError for weights that are not finite.
    """
    _check_finite(weights)
    if not weights.numel():
        return Alignment(frozenset())
    heaviest = enumerate(weights.argmax(dim=1).tolist())  # of equal weights, torch.argmax takes the first
    return Alignment(frozenset((source, target) for target, source in heaviest if weights[target, source] > threshold))


def word_weights(
    weights: Float[Tensor, "target source"],
    target_words: Sequence[int | None],
    source_words: Sequence[int | None],
) -> Float[Tensor, "targets sources"]:
    """Aggregate weights of pieces to weights of words, (target words, source words).

    Args:
        weights: (target pieces, source pieces).
        target_words: word index of each target piece, from 0; None for a token outside all words, such as the end of
            the sentence. The number of words is the largest index plus 1; a word without pieces has weights of 0.
        source_words: the same for the source.

    Raises ShapeError if the numbers of pieces and weights differ, and OptionError for a negative word index.
    """
    if tuple(weights.shape) != (len(target_words), len(source_words)):
        raise ShapeError(
            "weights do not fit the pieces of the two sentences",
            expected=f"weights ({len(target_words)}, {len(source_words)}), one per target and source piece",
            got=str(tuple(weights.shape)),
            do="pass a word index or None for each piece",
        )
    of_target, of_source = _membership(target_words, weights), _membership(source_words, weights)
    pieces = of_target.sum(dim=0).clamp(min=1)
    return (of_target / pieces).T @ weights @ of_source


def _membership(words: Sequence[int | None], like: Tensor) -> Float[Tensor, "pieces words"]:
    """Build the membership matrix: 1 where a piece belongs to a word, else 0."""
    known = [word for word in words if word is not None]
    if min(known, default=0) < 0:
        raise OptionError(
            "a piece has a negative word index",
            expected="words counted from 0, or None",
            got=str(min(known)),
            do="pass None for a piece outside all words",
        )
    table = torch.zeros(len(words), max(known, default=-1) + 1, dtype=like.dtype, device=like.device)
    for piece, word in enumerate(words):
        if word is not None:
            table[piece, word] = 1
    return table


def _check_finite(weights: Tensor) -> None:
    if not torch.isfinite(weights).all():
        raise DataError(
            "weights are not finite, so none is the largest",
            expected="finite weights",
            got="NaN or Inf",
            do="check the model: its weights may be damaged",
        )

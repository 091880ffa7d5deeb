"""Links from the weights that a translator gave to the source.

    W_ij = 1/|T_i| sum_{t in T_i} sum_{s in S_j} w_ts       weights of words, from those of their pieces
    (i, j) is a link where j = argmax_k W_ik                each target word's heaviest source word

T_i are the pieces of target word i, S_j of source word j. Attention to a word that was split is the sum, attention
from one is the mean: Clark et al. 2019, "What does BERT look at?", section 4.1; for translation: Zenkel et al. 2019,
"Adding interpretable attention to neural translation models improves word alignment". Weights: (target, source).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import DataError, OptionError, ShapeError
from regard.text.alignments.alignment import Alignment


def links(weights: Float[Tensor, "target source"], *, threshold: float = 0.0) -> Alignment:
    """Each target word's heaviest source word, the first of several, where its weight is above ``threshold``.

    So a target word whose weights are all 0 has no link. Raises DataError for weights that are not finite.
    """
    _check_finite(weights)
    if not weights.numel():
        return Alignment(frozenset())
    heaviest = enumerate(weights.argmax(dim=1).tolist())  # of several, torch.argmax takes the first
    return Alignment(frozenset((source, target) for target, source in heaviest if weights[target, source] > threshold))


def word_weights(
    weights: Float[Tensor, "target source"],
    target_words: Sequence[int | None],
    source_words: Sequence[int | None],
) -> Float[Tensor, "targets sources"]:
    """Weights of words from those of their pieces.

    Args:
        weights: (target pieces, source pieces).
        target_words: the word that each target piece is of, counted from 0; None for a token that is of no word, such
            as the one that ends a sentence. There are as many words as the last one says; one without pieces has
            weights of 0.
        source_words: the same for the source.

    Raises ShapeError where there are not as many pieces as weights, and OptionError for a word before the first.
    """
    if tuple(weights.shape) != (len(target_words), len(source_words)):
        raise ShapeError(
            "weights do not fit the pieces of the two sentences",
            expected=f"weights ({len(target_words)}, {len(source_words)}), as the words of the pieces say",
            got=str(tuple(weights.shape)),
            do="pass a word, or None, for each piece",
        )
    of_target, of_source = _membership(target_words, weights), _membership(source_words, weights)
    pieces = of_target.sum(dim=0).clamp(min=1)
    return (of_target / pieces).T @ weights @ of_source


def _membership(words: Sequence[int | None], like: Tensor) -> Float[Tensor, "pieces words"]:
    """1 where a piece is of a word."""
    known = [word for word in words if word is not None]
    if min(known, default=0) < 0:
        raise OptionError(
            "a piece is of a word before the first",
            expected="words counted from 0, or None",
            got=str(min(known)),
            do="pass None for a piece that is of no word",
        )
    table = torch.zeros(len(words), max(known, default=-1) + 1, dtype=like.dtype, device=like.device)
    for piece, word in enumerate(words):
        if word is not None:
            table[piece, word] = 1
    return table


def _check_finite(weights: Tensor) -> None:
    if not torch.isfinite(weights).all():
        raise DataError(
            "weights are not finite, so none of them is the heaviest",
            expected="finite weights",
            got="NaN or Inf",
            do="check the model: its weights may be damaged",
        )

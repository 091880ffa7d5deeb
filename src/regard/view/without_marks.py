"""A reading without its marks: the special tokens of the tokenizer, and the token that is kept apart.

    weight'_ij = weight_ij * sum_k |weight_ik| / sum_k' |weight_ik'|        k' are the keys that are no marks

Many heads attend to [CLS], [SEP] or the first token when they find nothing relevant (Clark et al. 2019, "What does BERT
look at?", section 3.2; Xiao et al. 2024, "Efficient streaming language models with attention sinks"). Without them the
other weights of a row are larger, so that it has the sum that it had: 1 after a softmax. A row that attended to marks
alone is 0. Marks are left out as queries, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float64

from regard.arguments import explain_arguments
from regard.errors import DataError, check_kind
from regard.view.attention_layer import AttentionLayer
from regard.view.layer_weights import LayerWeights, weights_alone
from regard.view.pack import Json
from regard.view.reading import Reading, Tokens
from regard.view.shares import shares_by_head

_REASON = "The marks of the text are left out, and the other weights are scaled to the same sum."


@explain_arguments
def without_marks(reading: Reading) -> Reading:
    """Make the reading of the same text without its marks, whose rows have the sums that they had.

    ``mass_of_marks`` is the part of the attention that this leaves out. Raises DataError for a text of marks alone.
    """
    queries, keys = unmarked_tokens(reading)
    if has_only_marks(reading):
        raise DataError(
            "the text has only marks, so nothing is left without them",
            expected="a token that is no special token, and not kept apart",
            got=" ".join(reading.tokens.pieces[:8]) or "no tokens",
            do="use the reading as it is",
        )
    return replace(
        reading,
        tokens=_some_tokens(reading.tokens, queries),
        layers=tuple(_UnmarkedLayer(layer.name, layer, queries, keys) for layer in reading.layers),
        hidden=None if reading.hidden is None else reading.hidden[:, list(queries)],
        keys=None if reading.keys is None else _some_tokens(reading.keys, keys),
        answer=None,
        sink=None,
    )


@explain_arguments
def mass_of_marks(reading: Reading) -> Float64[np.ndarray, " heads"]:
    """Compute the share of attention that marks get, averaged over the other queries: of each head, layer by layer."""
    queries, keys = unmarked_tokens(reading)
    every_head = (shares for layer in reading.layers for shares in shares_by_head(layer))
    marks = sorted(set(range(len(reading.key_tokens))) - set(keys))
    return np.array(
        [shares[np.ix_(queries, marks)].sum() / max(1, len(queries)) for shares in every_head], dtype=np.float64
    )


def has_marks(reading: Reading) -> bool:
    """Whether a text has marks, and other tokens beside them."""
    queries, keys = unmarked_tokens(reading)
    return bool(queries and keys) and len(queries) + len(keys) < len(reading.tokens) + len(reading.key_tokens)


def has_only_marks(reading: Reading) -> bool:
    """Whether nothing of a text is left without its marks."""
    queries, keys = unmarked_tokens(reading)
    return not queries or not keys


def unmarked_tokens(reading: Reading) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of the query tokens and of the key tokens that are no marks."""
    check_kind("reading", reading, Reading, do="make one with regard.view.read")
    apart = {reading.sink} if reading.keys is None else set()
    queries = (token for token, special in enumerate(reading.tokens.special) if not special and token not in apart)
    keys = (token for token, special in enumerate(reading.key_tokens.special) if not special and token != reading.sink)
    return tuple(queries), tuple(keys)


def _some_tokens(tokens: Tokens, numbers: Sequence[int]) -> Tokens:
    """The tokens of these numbers, in the same text."""
    place = {number: at for at, number in enumerate(numbers)}
    words = [(word, tuple(place[piece] for piece in pieces if piece in place)) for word, pieces in tokens.words or ()]
    return Tokens(
        text=tokens.text,
        pieces=tuple(tokens.pieces[number] for number in numbers),
        spans=tuple(tokens.spans[number] for number in numbers),
        special=(False,) * len(numbers),
        words=None if tokens.words is None else tuple((word, pieces) for word, pieces in words if pieces),
        chinese_words=tokens.chinese_words,
    )


@final
@dataclass(frozen=True, eq=False)
class _UnmarkedLayer(AttentionLayer):
    """A layer with some of its queries and keys, whose rows have the sums that they had. Computed on request."""

    name: str
    layer: AttentionLayer
    query_numbers: tuple[int, ...]
    key_numbers: tuple[int, ...]

    @property
    def heads(self) -> int:
        return self.layer.heads

    @property
    def queries(self) -> int:
        return len(self.query_numbers)

    @property
    def keys(self) -> int:
        return len(self.key_numbers)

    @property
    def is_signed(self) -> bool:
        return self.layer.is_signed

    @property
    def is_causal(self) -> bool:
        return self.layer.is_causal

    @property
    def size(self) -> int:
        return self.heads * self.queries * self.keys

    def weights_of_heads(
        self, heads: range, queries: Sequence[int] | None = None
    ) -> Float64[np.ndarray, "some_heads rows keys"]:
        numbers = self.query_numbers if queries is None else [self.query_numbers[query] for query in queries]
        weights = self.layer.weights_of_heads(heads, numbers)
        rest = weights[:, :, list(self.key_numbers)]
        before, after = (np.abs(some).sum(axis=2, keepdims=True) for some in (weights, rest))
        return np.asarray(rest * np.divide(before, after, out=np.zeros_like(before), where=after > 0))

    def round_for_page(self, letters: int) -> LayerWeights:
        return self._alone().round_for_page(letters)

    def pack(self, masks: list[str], letters: int) -> Json:
        return self._alone().pack(masks, letters)

    def _alone(self) -> LayerWeights:
        return weights_alone(self.layer, _REASON, self.weights())

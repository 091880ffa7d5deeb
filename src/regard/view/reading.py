"""A reading: everything the views show of one text, as plain NumPy arrays.

Per layer it keeps query, key and value, so memory is linear in the number of tokens. The weights

    weights = softmax(scale * query @ key^T)        (Vaswani et al. 2017, eq. 1)

are computed on request, one layer at a time, and never stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64

from regard.errors import DataError, ShapeError

UNKNOWN = frozenset(("[UNK]", "<unk>"))  # the vocabularies' names for what they do not hold


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text, in reading order.

    ``spans`` are (start, end) in characters of ``text``; a special token such as [CLS] has an empty span.
    Raises ShapeError where pieces, spans and special differ in number.
    """

    text: str
    pieces: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not len(self.pieces) == len(self.spans) == len(self.special):
            raise ShapeError(
                "pieces, spans and special describe different numbers of tokens",
                expected=f"{len(self.pieces)} of each",
                got=f"{len(self.spans)} spans and {len(self.special)} special flags",
                do="give one span and one flag for every token",
            )

    def __len__(self) -> int:
        return len(self.pieces)

    def surface(self, token: int) -> str:
        """The token as the text writes it; the vocabulary's name where the text has nothing there."""
        start, end = self.spans[token]
        return self.pieces[token] if self.special[token] or start >= end else self.text[start:end]

    def unknown(self, token: int) -> bool:
        """Whether the vocabulary does not hold the token, so that the model reads it like any other such."""
        return self.pieces[token] in UNKNOWN and not self.special[token]


@dataclass(frozen=True, eq=False)
class LayerReading:
    """What one attention layer saw: query (heads, queries, head_dim), key and value (heads, keys, head_dim).

    ``allowed`` is True where a query may attend to a key; None allows everything.
    Raises ShapeError where the arrays do not fit together, DataError where a number is not finite.
    """

    name: str
    query: Float32[np.ndarray, "_heads _queries _head_dim"]
    key: Float32[np.ndarray, "_heads _keys _head_dim"]
    value: Float32[np.ndarray, "_heads _keys _value_dim"]
    scale: float
    allowed: Bool[np.ndarray, "_queries _keys"] | None = None

    def __post_init__(self) -> None:
        fits = (
            self.query.shape[0] == self.key.shape[0]
            and self.query.shape[2] == self.key.shape[2]
            and self.key.shape[:2] == self.value.shape[:2]
            and (self.allowed is None or self.allowed.shape == (self.query.shape[1], self.key.shape[1]))
        )
        if not fits:
            raise ShapeError(
                f"the arrays of {self.name} do not fit together",
                expected="query (heads, queries, head_dim), key and value (heads, keys, head_dim), "
                "allowed (queries, keys)",
                got=f"query {self.query.shape}, key {self.key.shape}, value {self.value.shape}, "
                f"allowed {None if self.allowed is None else self.allowed.shape}",
                do="repeat grouped key heads to the number of query heads, and cut padding from all alike",
            )
        if not all(np.isfinite(array).all() for array in (self.query, self.key, self.value)):
            raise DataError(
                f"{self.name} holds numbers that are not finite",
                expected="finite queries, keys and values",
                got="NaN or Inf",
                do="check the model's weights",
            )

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.query.shape[0])

    def weights(self) -> Float64[np.ndarray, "heads queries keys"]:
        """Attention weights in float64; a query that may attend to nothing gets a row of zeros."""
        scores = self.scale * (self.query.astype(np.float64) @ self.key.astype(np.float64).swapaxes(1, 2))
        if self.allowed is None:
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        else:
            highest = np.max(scores, axis=-1, keepdims=True, where=self.allowed, initial=-np.inf)
            highest[np.isneginf(highest)] = 0.0
            powers = np.where(self.allowed, np.exp(np.where(self.allowed, scores - highest, 0.0)), 0.0)
        total = powers.sum(axis=-1, keepdims=True)
        return np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)


@dataclass(frozen=True, eq=False)
class Reading:
    """One text as one model read it.

    ``hidden`` is (layers + 1, tokens, width), the embedding first. ``keys`` are the tokens looked at; None
    means the text looks at itself. ``dropped`` counts the tokens that truncation left out.
    Raises ShapeError where layers and tokens disagree, DataError where a hidden state is not finite.
    """

    tokens: Tokens
    layers: tuple[LayerReading, ...]
    hidden: Float32[np.ndarray, "_layers _tokens _width"]
    keys: Tokens | None = None
    dropped: int = 0

    def __post_init__(self) -> None:
        expected = (len(self.tokens), len(self.key_tokens))
        for layer in self.layers:
            got = (layer.query.shape[1], layer.key.shape[1])
            if got != expected:
                raise ShapeError(
                    f"{layer.name} does not fit its tokens",
                    expected=f"{expected[0]} queries and {expected[1]} keys",
                    got=f"{got[0]} queries and {got[1]} keys",
                    do="cut padding from the arrays and the tokens alike",
                )
        if self.hidden.shape[1] != len(self.tokens):
            raise ShapeError(
                "hidden states do not fit the tokens",
                expected=f"{len(self.tokens)} vectors a layer",
                got=f"{self.hidden.shape[1]}",
                do="cut padding from the hidden states too",
            )
        if not np.isfinite(self.hidden).all():
            raise DataError(
                "hidden states hold numbers that are not finite",
                expected="finite hidden states",
                got="NaN or Inf",
                do="check the model's weights",
            )

    @property
    def key_tokens(self) -> Tokens:
        """The tokens that are looked at."""
        return self.tokens if self.keys is None else self.keys

    @property
    def heads(self) -> int:
        """Number of heads in all layers together."""
        return sum(layer.heads for layer in self.layers)

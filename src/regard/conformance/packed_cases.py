"""The cases of packed rows: texts beside each other, given by the sums of their lengths (``cu_seqlens``).

A row is (1, heads, tokens, head_dim), and its texts do not see one another. Within a text, queries are the last
positions, or the first with ``align`` "start". Rows past the last text belong to no text: kernels may not read them,
and what they return for them is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, final

import numpy as np

from regard.conformance.attention_cases import EQUATION, POISONS, Sizes, poison
from regard.conformance.cases import Case, generator, make_tensors, sixteenths
from regard.conformance.layout import Layout

UNUSED = 5
"""Rows past the last text, where there are any."""


@final
class Texts(NamedTuple):
    """The texts of a row by their name: lengths of queries, and of keys if they are others."""

    name: str
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int = 3
    key_heads: int = 3
    unused: int = 0

    def arguments(self, sizes: Sizes) -> tuple[Layout, dict[str, Any]]:
        """The layout of the row, and its lengths as arguments."""
        lengths = {
            side: [-(-length // sizes.multiple) * sizes.multiple for length in of_side]
            for side, of_side in (("q", self.queries), ("k", self.keys))
        }
        queries, keys = (sum(of_side) + self.unused for of_side in lengths.values())
        layout = Layout(1, self.heads, self.key_heads, queries, keys, sizes.head_dim, sizes.head_dim)
        sums = {f"cu_seqlens_{side}": cumulative_lengths(of_side) for side, of_side in lengths.items()}
        return layout, {**sums, **{f"max_seqlen_{side}": max(of_side) for side, of_side in lengths.items()}}


def cumulative_lengths(lengths: list[int] | tuple[int, ...]) -> np.ndarray:
    """The sums of the lengths before each text, and of all: int32, as kernels take them."""
    return np.cumsum([0, *lengths], dtype=np.int32)


def _same(name: str, *lengths: int, **options: int) -> Texts:
    return Texts(name, lengths, lengths, **options)


SAME = _same("texts of prime lengths", 7, 3, 11)
FEWER = Texts("fewer queries than keys, as with a cache", (3, 1, 5), (7, 13, 5))
MORE = Texts("more queries than keys", (7, 11), (5, 2))
GROUPED = Texts("grouped queries", (3, 5), (7, 5), heads=6, key_heads=2)
LONG = _same("texts over several tiles", 67, 131, 17, heads=2, key_heads=1)
LONG_CACHE = Texts("fewer queries than keys over several tiles", (3, 17), (67, 131))
PADDED = Texts("rows past the last text", (3, 7), (5, 7), unused=UNUSED)
ROWS = (
    _same("a single text", 7),
    SAME,
    _same("an empty text between texts", 7, 0, 5),
    _same("an empty text at the start", 0, 5, 3),
    _same("an empty text at the end", 5, 3, 0),
    _same("texts of one token", 1, 7, 1),
    FEWER,
    MORE,
    Texts("a text without queries", (3, 0, 2), (5, 7, 2)),
    Texts("a text without keys", (3, 2, 5), (5, 0, 7)),
    GROUPED,
    _same("one key head for all heads", 5, 7, heads=3, key_heads=1),
    LONG,
    LONG_CACHE,
    PADDED,
)
EVERY_DTYPE = (SAME.name, f"causal, {GROUPED.name}")


def _terms() -> Iterator[tuple[str, Texts, Mapping[str, Any]]]:
    for row in ROWS:
        yield row.name, row, {}
    for row in ROWS:
        yield f"causal, {row.name}", row, {"causal": True}
    for row in (SAME, FEWER, GROUPED):
        yield f"window: 2 before, 0 after, {row.name}", row, {"window": (2, 0)}
    yield f"window: 2 before, 1 after, {FEWER.name}", FEWER, {"window": (2, 1)}
    yield f"window: 16 before, 0 after, {LONG.name}", LONG, {"window": (16, 0)}
    yield "causal window: 3 before", FEWER, {"causal": True, "window": (3, 0)}
    yield "a scale", SAME, {"scale": 0.3125}
    yield "a softcap", SAME, {"softcap": 1.25}
    yield "sinks", GROUPED, {"sinks": sixteenths(generator("packed sinks"), GROUPED.heads, size=1.5)}
    yield "causal, scale and softcap", GROUPED, {"causal": True, "scale": 0.75, "softcap": 1.25}


@cache
def packed_cases(sizes: Sizes, align: str = "end") -> tuple[Case, ...]:
    """All cases, the simplest first; ``align``: where queries are in their text, as in ``Convention``."""
    cases = []
    for name, row, terms in _terms():
        layout, lengths = row.arguments(sizes)
        arguments = {**make_tensors(layout, "packed", name), **lengths, **terms}
        if "causal" in terms or "window" in terms:
            arguments["align"] = align
        cases.append(Case(name, EQUATION, layout, arguments, every_dtype=name in EVERY_DTYPE))
    hiding = [case for case in cases if case.name in (PADDED.name, f"causal, {PADDED.name}")]
    return (*cases, *(poison(case, kind) for case in hiding for kind in POISONS))

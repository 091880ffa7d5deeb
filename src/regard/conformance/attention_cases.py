"""The cases of exact attention: lengths, groups, terms, masks and windows at their edges, and canaries behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, final

import numpy as np

from regard.conformance.cases import Case, generator, make_tensors, sixteenths
from regard.conformance.equations import AttentionEquation
from regard.conformance.layout import Layout
from regard.conformance.oracles import masks

EQUATION = AttentionEquation()
Terms = Mapping[str, Any]


@final
class Sizes(NamedTuple):
    """The sizes that a kernel accepts: of a head, the number that divides its lengths, and fixed heads."""

    head_dim: int = 5
    multiple: int = 1
    heads: tuple[int, int] | None = None

    def layout(self, heads: int, key_heads: int, queries: int, keys: int, value_dim: int | None = None) -> Layout:
        """A layout of two batch entries, with lengths rounded up."""
        heads, key_heads = self.heads or (heads, key_heads)
        queries, keys = (-(-length // self.multiple) * self.multiple for length in (queries, keys))
        return Layout(
            2, heads, key_heads, queries, keys, self.head_dim, self.head_dim if value_dim is None else value_dim
        )


@final
class Shape(NamedTuple):
    """A shape of calls by its name: heads, key heads, queries and keys."""

    name: str
    heads: int
    key_heads: int
    queries: int
    keys: int


SQUARE = Shape("as many queries as keys", 3, 3, 7, 7)
FEWER = Shape("fewer queries than keys, as with a cache", 3, 3, 5, 13)
MORE = Shape("more queries than keys", 3, 3, 11, 7)
SINGLE = Shape("one query, as in a step with a cache", 3, 3, 1, 13)
GROUPED = Shape("grouped queries", 6, 2, 7, 7)
SHARED = Shape("one key head for all heads", 3, 1, 5, 13)
LONG = Shape("lengths over several tiles", 2, 1, 131, 67)
LONG_CACHE = Shape("keys over several tiles", 2, 2, 17, 139)
SHAPES = (SQUARE, FEWER, MORE, SINGLE, GROUPED, SHARED, LONG, LONG_CACHE)


def _sinks(layout: Layout) -> np.ndarray:
    return sixteenths(generator("sinks"), layout.heads, size=1.5)


def _bias(*sizes: str) -> Callable[[Layout], np.ndarray]:
    """A random bias; its shape is given by names of sizes, or "1" where it is broadcast."""

    def make(layout: Layout) -> np.ndarray:
        shape = [1 if size == "1" else getattr(layout, size) for size in sizes]
        return sixteenths(generator("bias", *sizes), *shape, size=1.5)

    return make


PAIR_BIAS = _bias("1", "heads", "queries", "keys")


def _random_mask(layout: Layout) -> np.ndarray:
    """A mask of its own for each head; each query sees a key."""
    drawn = generator("mask").random((layout.batch, layout.heads, layout.queries, layout.keys)) < 0.6
    drawn[..., 0] |= ~drawn.any(-1)
    return drawn


def _sparse_mask(layout: Layout) -> np.ndarray:
    """A mask with rows in which nothing is visible, in the middle and for a whole batch entry and head."""
    drawn = generator("sparse").random((layout.batch, layout.heads, layout.queries, layout.keys)) < 0.4
    drawn[:, :, layout.queries // 2] = False
    drawn[1, -1] = False
    return drawn


def _lengths(layout: Layout) -> list[int]:
    return [max(1, layout.keys - 2), min(3, layout.keys)]


def _padding(layout: Layout) -> np.ndarray:
    return masks.padding(_lengths(layout), layout.queries, layout.keys)


def _left_padding(layout: Layout) -> np.ndarray:
    return _padding(layout)[..., ::-1].copy()


def _packed_texts(layout: Layout) -> np.ndarray:
    """Texts of 3 and of 2 tokens behind each other, causal within each."""
    ids = [[key // length for key in range(layout.keys)] for length in (3, 2)]
    return masks.documents(ids, layout.queries, layout.keys) & masks.causal(layout.queries, layout.keys)


def _causal(layout: Layout) -> np.ndarray:
    return masks.causal(layout.queries, layout.keys)[None, None]


def _window_mask(layout: Layout) -> np.ndarray:
    return masks.window(2, 1, layout.queries, layout.keys)[None, None]


MASKS: Mapping[str, Callable[[Layout], np.ndarray]] = {
    "a mask for each head": _random_mask,
    "a mask that hides all keys of some queries": _sparse_mask,
    "padding on the right": _padding,
    "padding on the left": _left_padding,
    "packed texts": _packed_texts,
    "a causal mask as an array": _causal,
    "a window as an array": _window_mask,
}

WINDOWS: tuple[tuple[int | None, int | None], ...] = ((2, 0), (0, 0), (2, 1), (None, 2), (3, None))
"""Keys before and after the query's own; None is unbounded."""


def _make_term(name: str, make: Callable[[Layout], np.ndarray]) -> Callable[[Layout], Terms]:
    return lambda layout: {name: make(layout)}


def _constant(**terms: Any) -> Callable[[Layout], Terms]:
    return lambda layout: terms


def _terms_alone() -> Iterator[tuple[str, Shape, Callable[[Layout], Terms]]]:
    """Each term alone, in the shapes that matter to it."""
    for shape in SHAPES:
        yield shape.name, shape, _constant()
    yield "a scale", SQUARE, _constant(scale=0.3125)
    yield "a softcap", SQUARE, _constant(softcap=1.25)
    for shape in (SQUARE, GROUPED, LONG_CACHE):
        yield f"sinks, {shape.name}", shape, _make_term("sinks", _sinks)
    yield "a trained bias of each batch entry", SQUARE, _make_term("bias", _bias("batch", "heads", "queries", "keys"))
    yield "a trained bias of all batch entries", SQUARE, _make_term("bias", PAIR_BIAS)
    yield "a trained bias of all heads", FEWER, _make_term("bias", _bias("batch", "1", "queries", "keys"))
    yield "a trained bias, lengths over several tiles", LONG, _make_term("bias", PAIR_BIAS)
    yield "a trained bias of keys", FEWER, _make_term("bias", _bias("1", "heads", "1", "keys"))
    for shape in (SQUARE, FEWER, SINGLE, MORE, GROUPED, LONG, LONG_CACHE):
        yield f"causal, {shape.name}", shape, _constant(causal=True)
    for left, right in WINDOWS:
        bounds = f"{'all' if left is None else left} before, {'all' if right is None else right} after"
        yield f"window: {bounds}", SQUARE, _constant(window=(left, right))
    for shape in (FEWER, MORE, LONG, LONG_CACHE):
        yield f"window: 16 before, 0 after, {shape.name}", shape, _constant(window=(16, 0))
    yield "window: 3 before, 0 after, grouped queries", GROUPED, _constant(window=(3, 0))
    yield "window: 2 before, 0 after, fewer queries than keys", FEWER, _constant(window=(2, 0))
    yield "causal window: 3 before", FEWER, _constant(causal=True, window=(3, 0))
    for name, mask in MASKS.items():
        for shape in (SQUARE, FEWER, GROUPED) if name.startswith("a mask") else (SQUARE, FEWER):
            yield f"{name}, {shape.name}", shape, _make_term("mask", mask)
    yield "a mask for each head, lengths over several tiles", LONG, _make_term("mask", _random_mask)


def _terms_together() -> Iterator[tuple[str, Shape, Callable[[Layout], Terms]]]:
    """Terms that depend on each other's order."""
    yield "mask and bias", GROUPED, lambda layout: {"mask": _random_mask(layout), "bias": PAIR_BIAS(layout)}
    yield "mask and sinks", FEWER, lambda layout: {"mask": _sparse_mask(layout), "sinks": _sinks(layout)}
    yield "mask and softcap", FEWER, lambda layout: {"mask": _random_mask(layout), "softcap": 1.25}
    yield "softcap and bias", SQUARE, lambda layout: {"softcap": 1.25, "bias": PAIR_BIAS(layout)}
    yield "scale and softcap", SQUARE, _constant(scale=0.75, softcap=1.25)
    yield "scale and bias", SQUARE, lambda layout: {"scale": 0.3125, "bias": PAIR_BIAS(layout)}
    yield "causal and mask", FEWER, lambda layout: {"causal": True, "mask": _random_mask(layout)}
    yield "causal and bias", GROUPED, lambda layout: {"causal": True, "bias": PAIR_BIAS(layout)}
    yield "causal and sinks", GROUPED, lambda layout: {"causal": True, "sinks": _sinks(layout)}
    yield "window and sinks", LONG_CACHE, lambda layout: {"window": (16, 0), "sinks": _sinks(layout)}
    yield "all terms", GROUPED, _every_term


def _every_term(layout: Layout) -> Terms:
    arrays = {"mask": _random_mask(layout), "bias": PAIR_BIAS(layout), "sinks": _sinks(layout)}
    return {**arrays, "causal": True, "softcap": 2.5, "scale": 0.75}


EVERY_DTYPE = (SQUARE.name, LONG.name, f"causal, {FEWER.name}", f"a mask for each head, {GROUPED.name}")
"""Cases that are tried in half precision, too."""

POISONS = {"another number": 7.0, "1e30": 1e30, "inf": np.inf, "nan": np.nan}
"""Canaries: numbers that take the place of hidden keys and values."""


HIDING = (
    f"padding on the right, {SQUARE.name}",
    f"padding on the right, {FEWER.name}",
    f"causal, {FEWER.name}",
    f"causal, {LONG_CACHE.name}",
    f"window: 16 before, 0 after, {LONG_CACHE.name}",
)
"""Cases behind whose masks canaries are put."""


def poison(clean: Case, kind: str) -> Case:
    """The case with other keys and values where no query of their heads may attend.

    If there are no such keys, the last two are overwritten, and only the queries that may not see them are compared.
    Of packed rows, queries past the last text are overwritten, too.
    """
    layout, arguments = clean.layout, dict(clean.arguments)
    grouped = (layout.batch, layout.key_heads, layout.group, layout.queries, layout.keys)
    hidden = ~np.any(clean.expected.allowed.reshape(grouped), axis=(2, 3), keepdims=True).reshape(*grouped[:2], -1)
    if not hidden.any():
        hidden[..., -2:] = True
    for name in ("key", "value"):
        array: np.ndarray = arguments[name]
        signs = np.where(np.arange(array.shape[-1]) % 2, -1.0, 1.0)
        arguments[name] = np.where(hidden[..., None], POISONS[kind] * signs, array)
    if "cu_seqlens_q" in arguments:
        arguments["query"] = arguments["query"].copy()
        arguments["query"][:, :, arguments["cu_seqlens_q"][-1] :] = POISONS[kind]
    affected = (clean.expected.allowed & np.repeat(hidden, layout.group, axis=1)[:, :, None]).any(-1)
    name = f"{clean.name}; hidden keys and values are {kind}"
    return Case(name, EQUATION, layout, arguments, poison=kind, clean=clean, affected=affected)


def _large_scores(layout: Layout, sign: int) -> Terms:
    """Scores of about 100 or -100, whose exponentials overflow or vanish unless the maximum is subtracted."""
    tensors = make_tensors(layout, "large scores")
    return {
        "query": np.clip(6.5 + tensors["query"] / 2, 0, 7.9375),
        "key": sign * np.clip(6.5 + tensors["key"] / 2, 0, 7.9375),
    }


@cache
def attention_cases(sizes: Sizes, align: str = "end") -> tuple[Case, ...]:
    """All cases, the simplest first; ``align``: where queries are, as in ``Convention``."""
    cases = []
    for name, shape, terms in (*_terms_alone(), *_terms_together()):
        layout = sizes.layout(*shape[1:])
        arguments = {**make_tensors(layout, name), **terms(layout)}
        if "causal" in arguments or "window" in arguments:
            arguments["align"] = align
        cases.append(Case(name, EQUATION, layout, arguments, every_dtype=name in EVERY_DTYPE))
    wide = sizes.layout(*SQUARE[1:], value_dim=2 * sizes.head_dim + 1)
    cases.append(Case("values of another size than keys", EQUATION, wide, make_tensors(wide, "values")))
    square = sizes.layout(*SQUARE[1:])
    for name, sign in (("large scores", 1), ("large negative scores", -1)):
        cases.append(Case(name, EQUATION, square, {**make_tensors(square, name), **_large_scores(square, sign)}))
    hidden = {"mask": _random_mask(square), "scale": 512.0, **_large_scores(square, -1)}
    cases.append(
        Case(
            "scores below any number that stands for -inf", EQUATION, square, {**make_tensors(square, "low"), **hidden}
        )
    )
    cases += [poison(case, kind) for case in cases if case.name in HIDING for kind in POISONS]
    return tuple(cases)


@cache
def dropout_case(sizes: Sizes) -> Case:
    """Values that show the weights themselves: channel j is 1 for key j and 0 for others."""
    keys = -(-31 // sizes.multiple) * sizes.multiple
    layout = Layout(2, 3, 3, keys, keys, sizes.head_dim, keys)
    tensors = make_tensors(layout, "dropout")
    tensors["value"] = np.broadcast_to(np.eye(keys), tensors["value"].shape).copy()
    arguments = {**tensors, "mask": _random_mask(layout), "dropout": 0.5}
    return Case("dropout", EQUATION, layout, arguments)

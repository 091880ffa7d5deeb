"""Wrong sums over keys and heads: groups of heads, tiles of keys, the softmax, and its lse."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from regard.conformance.cases import Case
from regard.conformance.equations import attention_with
from regard.conformance.faults.packed import places_of_keys
from regard.conformance.oracles import attention

TILES = (8, 16, 32, 64, 128)
"""Usual numbers of keys in a tile, and of tokens in a chunk."""


def wrong_groups(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each wrong choice of keys and values of a head in words, with the output that it gives."""
    group, key_heads = case.layout.group, case.layout.key_heads
    if case.layout.batch > 1:
        first = {
            name: np.broadcast_to(case.arguments[name][:1], case.arguments[name].shape) for name in ("key", "value")
        }
        yield "the keys and values of the first batch entry are used for all", attention_with(case, **first)
        yield "the keys of the first batch entry are used for all", attention_with(case, key=first["key"])
        yield "the values of the first batch entry are used for all", attention_with(case, value=first["value"])
    if group == 1:
        return
    heads = np.arange(case.layout.heads)
    orders = {
        "key heads are repeated in the wrong order: head h reads h % key_heads, not h // group": heads % key_heads,
        "all heads read the first key head": heads * 0,
        "all heads read the last key head": heads * 0 + key_heads - 1,
        "heads read the key head after their own": (heads // group + 1) % key_heads,
    }
    for sentence, order in orders.items():
        changed = {name: case.arguments[name][:, order] for name in ("key", "value")}
        yield sentence, attention_with(case, **changed)
        for name, array in changed.items():
            yield (
                f"{sentence} (of the keys alone)" if name == "key" else f"{sentence} (of the values alone)",
                attention_with(
                    case,
                    **{
                        "key": np.repeat(case.arguments["key"], group, 1),
                        "value": np.repeat(case.arguments["value"], group, 1),
                        name: array,
                    },
                ),
            )


def wrong_tiles(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each fault of tiles of keys in words, with the output that it gives."""
    keys, (place, length) = case.layout.keys, places_of_keys(case)
    for tile in TILES:
        if not np.any((length % tile > 0) & (length > tile)):
            continue
        allowed = case.expected.allowed & (place < length - length % tile)
        yield f"the keys of the last, incomplete tile of {tile} are ignored", attention_with(case, allowed)
    for tile in TILES:
        if keys % tile and case.arguments.get("sinks") is None:
            padding = np.full(case.layout.heads, np.log(tile - keys % tile))
            yield (
                f"keys that pad the last tile of {tile} take part with scores of 0",
                attention_with(case, sinks=padding),
            )
    for tile in TILES:
        if length.max() > tile:
            allowed = case.expected.allowed
            yield f"the first tile of {tile} keys is ignored", attention_with(case, allowed & (place >= tile))
            yield f"only the first tile of {tile} keys is read", attention_with(case, allowed & (place < tile))


def wrong_running_sums(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each fault of a softmax over tiles in words, with the output that it gives."""
    arguments, layout = case.arguments, case.layout
    if {"bias", "softcap", "dropout_mask", "cu_seqlens_q"} & {
        name for name in arguments if arguments[name] is not None
    }:
        return
    key, value = (np.repeat(arguments[name], layout.group, axis=1) for name in ("key", "value"))
    scores = arguments.get("scale", 1 / np.sqrt(layout.head_dim)) * arguments["query"] @ key.swapaxes(2, 3)
    scores = np.where(case.expected.allowed, scores, -np.inf)
    for tile in TILES:
        if layout.keys <= tile:
            return
        for sentence, step in (
            (f"the sum is not rescaled when a later tile of {tile} keys has a higher score", "sum"),
            (f"the output is not rescaled when a later tile of {tile} keys has a higher score", "output"),
            (f"the maximum of the tile of {tile} keys before is kept, and not that of all tiles before", "maximum"),
            (f"the sum is of the last tile of {tile} keys alone", "earlier_sums"),
        ):
            yield sentence, _tiled_softmax(scores, value, arguments.get("sinks"), tile, step)


def _tiled_softmax(
    scores: np.ndarray, value: np.ndarray, sinks: np.ndarray | None, tile: int, without: str
) -> np.ndarray:
    """The output of a running softmax over tiles of keys ``without`` one of its steps."""
    highest, total = np.full((*scores.shape[:3], 1), -np.inf), np.zeros((*scores.shape[:3], 1))
    if sinks is not None:
        highest, total = np.broadcast_to(sinks[None, :, None, None], highest.shape), np.ones_like(total)
    summed = np.zeros((*scores.shape[:3], value.shape[3]))
    for first in range(0, scores.shape[3], tile):
        part = scores[..., first : first + tile]
        of_tile = part.max(-1, keepdims=True)
        higher = np.maximum(highest, of_tile)
        safe = np.where(np.isfinite(higher), higher, 0.0)
        factor, exponentials = np.exp(highest - safe), np.exp(part - safe)
        sum_factor = {"sum": 1.0, "earlier_sums": 0.0}.get(without, factor)
        total = total * sum_factor + exponentials.sum(-1, keepdims=True)
        summed = summed * (1.0 if without == "output" else factor) + exponentials @ value[:, :, first : first + tile]
        highest = of_tile if without == "maximum" else higher
    seen = np.isfinite(scores).any(-1, keepdims=True)
    return np.where(seen, summed / np.where(total == 0, 1.0, total), 0.0)


def wrong_sums(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each fault of the softmax or of dropout in words, with the output that it gives."""
    exact = case.expected
    if exact.weights is None:
        return
    value = np.repeat(case.arguments["value"], case.layout.group, axis=1)
    dropout_mask = case.arguments.get("dropout_mask")
    if dropout_mask is not None:
        yield "dropout is ignored", exact.weights @ value
        yield "weights that dropout keeps are not divided by 1 - p", (exact.weights * (dropout_mask > 0)) @ value
        yield (
            "dropout is applied before the softmax, so that the kept weights add up to 1",
            attention_with(case, exact.allowed & (dropout_mask > 0), dropout_mask=None),
        )
    if case.layout.queries == case.layout.keys:
        yield "the softmax is over queries instead of keys", _softmax_of_queries(case) @ value
    scale = case.arguments.get("scale", 1 / np.sqrt(case.layout.head_dim))
    if not {"bias", "sinks", "softcap"} & case.arguments.keys():
        yield "exponentials are of base 2 without the factor of log2(e)", attention_with(case, scale=scale * np.log(2))
    total = _sum_of_exponentials(case)
    yield "the output is not divided by the sum of the exponentials", exact.output * total[..., None]
    yield "the output is divided by the number of keys", exact.output * total[..., None] / case.layout.keys


def _sum_of_exponentials(case: Case) -> np.ndarray:
    """The sum of exp(score - maximum) of each query, 0 for one that sees nothing."""
    query, key, value, bias, scale = (case.arguments.get(name) for name in ("query", "key", "value", "bias", "scale"))
    terms = {name: case.arguments.get(name) for name in ("softcap", "sinks")}
    statistics = attention.observe(query, key, value, case.expected.allowed, bias, scale, **terms)  # type: ignore[arg-type]
    highest, lse = statistics.max_score, statistics.lse
    assert highest is not None
    return np.where(np.isfinite(lse), np.exp(lse - highest), 0.0)


def _softmax_of_queries(case: Case) -> np.ndarray:
    key = np.repeat(case.arguments["key"], case.layout.group, axis=1)
    scores = case.arguments["query"] @ key.swapaxes(2, 3) / np.sqrt(case.layout.head_dim)
    exponentials = np.where(case.expected.allowed, np.exp(scores), 0.0)
    shares: np.ndarray = exponentials / np.maximum(exponentials.sum(2, keepdims=True), 1e-300)
    return shares


def wrong_lse(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each fault of the lse of right scores in words, with the lse that it gives."""
    exact = case.expected.lse
    assert exact is not None
    yield "the lse is in base 2", exact / np.log(2)
    yield "the lse is negated", -exact
    yield "the logarithm of the sum is missing", np.exp(exact)
    query, key, value, bias, scale = (case.arguments.get(name) for name in ("query", "key", "value", "bias", "scale"))
    cap = case.arguments.get("softcap")
    without = attention.observe(query, key, value, case.expected.allowed, bias, scale, softcap=cap)  # type: ignore[arg-type]
    assert without.max_score is not None
    yield "the lse lacks the sink", without.lse
    yield "the lse is the maximum of the scores alone", without.max_score
    yield "the lse lacks the maximum of the scores", exact - without.max_score

"""The sizes and the masks that every promise is tested with.

Sizes are primes, so that a swapped axis is detected, except where heads share keys. Each mask comes with the same mask
from ``regard.conformance.oracles.masks``, a double loop over queries and keys.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from regard import masks
from regard.conformance.layout import Layout
from regard.conformance.oracles import masks as oracle

LAYOUTS = (
    Layout(batch=2, heads=3, key_heads=3, queries=7, keys=7, head_dim=5, value_dim=11),
    Layout(batch=2, heads=3, key_heads=1, queries=5, keys=13, head_dim=7, value_dim=7),
    Layout(batch=2, heads=4, key_heads=2, queries=11, keys=7, head_dim=5, value_dim=3),
)


class MaskCase(NamedTuple):
    """A mask, and its expected value ``allowed``: bool, broadcastable to (batch, heads, queries, keys)."""

    name: str
    mask: Callable[[Layout], masks.Mask | None]
    allowed: Callable[[Layout], np.ndarray]


def _random_bools(*shape: int, chance: float = 0.5) -> np.ndarray:
    """Random bools, the same ones for the same shape and chance."""
    return np.random.default_rng([*shape, int(100 * chance)]).random(shape) < chance


def _lengths(layout: Layout) -> list[int]:
    return [layout.keys - 2, 3]


def _document_ids(layout: Layout) -> np.ndarray:
    """Document ids of the keys: runs of 3, and for the second entry runs of 2."""
    return np.stack([np.arange(layout.keys) // 3, np.arange(layout.keys) // 2])


def _query_ids(layout: Layout) -> np.ndarray:
    return np.stack([np.arange(layout.queries) // 2, np.arange(layout.queries) % 3])


def _random_flags(layout: Layout) -> np.ndarray:
    return _random_bools(layout.batch, layout.keys, chance=0.3)


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _positions(layout: Layout) -> np.ndarray:
    return np.arange(layout.queries) + layout.keys - layout.queries


def _causal(layout: Layout) -> np.ndarray:
    return oracle.causal(layout.queries, layout.keys)


def _window(left: int | None, right: int | None) -> Callable[[Layout], np.ndarray]:
    return lambda layout: oracle.window(left, right, layout.queries, layout.keys)


def _padding(layout: Layout) -> np.ndarray:
    return oracle.padding(_lengths(layout), layout.queries, layout.keys)


def _left_padding(layout: Layout) -> np.ndarray:
    return oracle.padding(_lengths(layout), layout.queries, layout.keys)[..., ::-1]


def _same_document(layout: Layout) -> np.ndarray:
    return _query_ids(layout)[:, None, :, None] == _document_ids(layout)[:, None, None, :]


def _packed_documents(layout: Layout) -> np.ndarray:
    """Pairs in one document; queries have the ids of the last keys, or their own if they outnumber the keys."""
    return (
        oracle.documents(_document_ids(layout).tolist(), layout.queries, layout.keys)
        if layout.queries <= layout.keys
        else _same_document(layout)
    )


def _documents(layout: Layout) -> masks.Mask:
    ids = _tensor(_document_ids(layout))
    return (
        masks.documents(ids)
        if layout.queries <= layout.keys
        else masks.documents(ids, query_ids=_tensor(_query_ids(layout)))
    )


def _global(layout: Layout) -> np.ndarray:
    return oracle.global_tokens([0, 3], layout.queries, layout.keys)


def _global_flags(layout: Layout) -> np.ndarray:
    flags = _random_flags(layout)
    of_query = np.stack(
        [[0 <= position < len(row) and row[position] for position in _positions(layout)] for row in flags]
    )
    return of_query[:, None, :, None] | flags[:, None, None, :]


def _dense_blocks(layout: Layout, mask: masks.Mask) -> np.ndarray:
    """Return the mask's own cells: an oracle cannot know the random draw; property tests check the blocks per row."""
    return mask.dense(layout.queries, layout.keys).numpy()


def _random_keep(*shape: str, chance: float = 0.5) -> Callable[[Layout], np.ndarray]:
    """Random bools whose shape is given by names of sizes of the layout, or "1" for a broadcast dimension."""
    return lambda layout: _random_bools(*(1 if name == "1" else getattr(layout, name) for name in shape), chance=chance)


def _keep_mask(array: Callable[[Layout], np.ndarray]) -> Callable[[Layout], masks.Mask]:
    return lambda layout: masks.keep(_tensor(array(layout)))


_FULL = _random_keep("batch", "heads", "queries", "keys")
_ROWS = _random_keep("1", "1", "queries", "1")
_PER_BATCH = _random_keep("batch", "1", "queries", "keys")
_PER_HEAD = _random_keep("1", "heads", "queries", "keys")
_KEYS_PER_HEAD = _random_keep("1", "heads", "1", "keys")
_SPARSE = _random_keep("batch", "heads", "queries", "keys", chance=0.15)

_few_blocks = masks.random_blocks(1, block=3, seed=5)
_causal_mask, _near_window = masks.causal(), masks.window(2, 1)


def _padding_mask(layout: Layout) -> masks.Mask:
    return masks.padding(_lengths(layout))


def _left_padding_mask(layout: Layout) -> masks.Mask:
    return masks.padding(_lengths(layout), side="left")


MASK_CASES = (
    MaskCase("none", lambda layout: None, lambda layout: np.ones((1, 1, 1, 1), dtype=bool)),
    MaskCase("causal", lambda layout: _causal_mask, _causal),
    MaskCase(
        "causal, aligned at the start",
        lambda layout: masks.causal(align="start"),
        lambda layout: np.tri(layout.queries, layout.keys, dtype=bool),
    ),
    MaskCase("window", lambda layout: _near_window, _window(2, 1)),
    MaskCase("window of its own position", lambda layout: masks.window(0, 0), _window(0, 0)),
    MaskCase("window open on the left", lambda layout: masks.window(None, 2), _window(None, 2)),
    MaskCase("window open on the right", lambda layout: masks.window(3, None), _window(3, None)),
    MaskCase("window open on both sides", lambda layout: masks.window(None, None), _window(None, None)),
    MaskCase("padding", _padding_mask, _padding),
    MaskCase("padding on the left", _left_padding_mask, _left_padding),
    MaskCase(
        "padding of a whole sequence",
        lambda layout: masks.padding([0, layout.keys]),
        lambda layout: oracle.padding([0, layout.keys], layout.queries, layout.keys),
    ),
    MaskCase(
        "padding by token id",
        lambda layout: masks.padding_of(_tensor(_document_ids(layout)), 1),
        lambda layout: (_document_ids(layout) != 1)[:, None, None, :],
    ),
    MaskCase("documents", _documents, _packed_documents),
    MaskCase(
        "documents with query ids",
        lambda layout: masks.documents(_tensor(_document_ids(layout)), query_ids=_tensor(_query_ids(layout))),
        _same_document,
    ),
    MaskCase("global tokens", lambda layout: masks.global_tokens([0, 3]), _global),
    MaskCase(
        "global tokens per sequence", lambda layout: masks.global_tokens(_tensor(_random_flags(layout))), _global_flags
    ),
    MaskCase("random blocks", lambda layout: _few_blocks, lambda layout: _dense_blocks(layout, _few_blocks)),
    MaskCase(
        "random blocks per head",
        lambda layout: masks.random_blocks(1, block=2, heads=layout.heads),
        lambda layout: _dense_blocks(layout, masks.random_blocks(1, block=2, heads=layout.heads)),
    ),
    MaskCase("keep", _keep_mask(_random_keep("queries", "keys")), _random_keep("queries", "keys")),
    MaskCase("keep per sequence", _keep_mask(_PER_BATCH), _PER_BATCH),
    MaskCase("keep per head", _keep_mask(_PER_HEAD), _PER_HEAD),
    MaskCase("keep per sequence and head", _keep_mask(_FULL), _FULL),
    MaskCase("keep per sequence and head, sparse", _keep_mask(_SPARSE), _SPARSE),
    MaskCase("keep keys per head", _keep_mask(_KEYS_PER_HEAD), _KEYS_PER_HEAD),
    MaskCase("keep whole rows", _keep_mask(_ROWS), _ROWS),
    MaskCase(
        "keep nothing",
        _keep_mask(_random_keep("1", "1", "1", "1", chance=0.0)),
        _random_keep("1", "1", "1", "1", chance=0.0),
    ),
    MaskCase("blocked", lambda layout: masks.blocked(_tensor(_PER_HEAD(layout))), lambda layout: ~_PER_HEAD(layout)),
    MaskCase(
        "causal & padding",
        lambda layout: _causal_mask & _padding_mask(layout),
        lambda layout: _causal(layout) & _padding(layout),
    ),
    MaskCase(
        "causal & left padding",
        lambda layout: _causal_mask & _left_padding_mask(layout),
        lambda layout: _causal(layout) & _left_padding(layout),
    ),
    MaskCase(
        "causal & documents & padding",
        lambda layout: _causal_mask & _documents(layout) & _padding_mask(layout),
        lambda layout: _causal(layout) & _packed_documents(layout) & _padding(layout),
    ),
    MaskCase(
        "(window | global) & padding",
        lambda layout: (_near_window | masks.global_tokens([0, 3])) & _padding_mask(layout),
        lambda layout: (_window(2, 1)(layout) | _global(layout)) & _padding(layout),
    ),
    MaskCase(
        "(window | random | global) & padding",
        lambda layout: (_near_window | _few_blocks | masks.global_tokens([0, 3])) & _padding_mask(layout),
        lambda layout: (
            (_window(2, 1)(layout) | _dense_blocks(layout, _few_blocks) | _global(layout)) & _padding(layout)
        ),
    ),
    MaskCase("~causal", lambda layout: ~_causal_mask, lambda layout: ~_causal(layout)),
    MaskCase(
        "~~(causal & keep per head)",
        lambda layout: ~~(_causal_mask & _keep_mask(_PER_HEAD)(layout)),
        lambda layout: _causal(layout) & _PER_HEAD(layout),
    ),
    MaskCase(
        "~(window & padding) | documents",
        lambda layout: ~(_near_window & _padding_mask(layout)) | _documents(layout),
        lambda layout: ~(_window(2, 1)(layout) & _padding(layout)) | _packed_documents(layout),
    ),
    MaskCase(
        "~(~causal | ~left padding)",
        lambda layout: ~(~_causal_mask | ~_left_padding_mask(layout)),
        lambda layout: _causal(layout) & _left_padding(layout),
    ),
    MaskCase(
        "(keep per sequence | keep per head) & ~global",
        lambda layout: (_keep_mask(_PER_BATCH)(layout) | _keep_mask(_PER_HEAD)(layout)) & ~masks.global_tokens([0, 3]),
        lambda layout: (_PER_BATCH(layout) | _PER_HEAD(layout)) & ~_global(layout),
    ),
    MaskCase(
        "padding & ~padding",
        lambda layout: _padding_mask(layout) & ~_padding_mask(layout),
        lambda layout: np.zeros((1, 1, 1, 1), dtype=bool),
    ),
)


@cache
def expand_allowed(mask_case: MaskCase, layout: Layout) -> np.ndarray:
    """The oracle's mask (batch, heads, queries, keys), read-only."""
    return np.broadcast_to(mask_case.allowed(layout), (layout.batch, layout.heads, layout.queries, layout.keys))

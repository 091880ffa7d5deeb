"""The sizes and the masks that every promise is tested with.

Sizes are primes, so that a swapped axis is detected, except where heads share keys. Each mask comes with the same mask
from ``oracles.masks``, a double loop over queries and keys.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from oracles import masks as oracle
from regard import masks


class Layout(NamedTuple):
    """The sizes of one call."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int

    @property
    def group(self) -> int:
        return self.heads // self.key_heads


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


def _lengths(at: Layout) -> list[int]:
    return [at.keys - 2, 3]


def _document_ids(at: Layout) -> np.ndarray:
    """Document ids of the keys: runs of 3, and for the second entry runs of 2."""
    return np.stack([np.arange(at.keys) // 3, np.arange(at.keys) // 2])


def _query_ids(at: Layout) -> np.ndarray:
    return np.stack([np.arange(at.queries) // 2, np.arange(at.queries) % 3])


def _random_flags(at: Layout) -> np.ndarray:
    return _random_bools(at.batch, at.keys, chance=0.3)


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _positions(at: Layout) -> np.ndarray:
    return np.arange(at.queries) + at.keys - at.queries


def _causal(at: Layout) -> np.ndarray:
    return oracle.causal(at.queries, at.keys)


def _window(left: int | None, right: int | None) -> Callable[[Layout], np.ndarray]:
    return lambda at: oracle.window(left, right, at.queries, at.keys)


def _padding(at: Layout) -> np.ndarray:
    return oracle.padding(_lengths(at), at.queries, at.keys)


def _left_padding(at: Layout) -> np.ndarray:
    return oracle.padding(_lengths(at), at.queries, at.keys)[..., ::-1]


def _same_document(at: Layout) -> np.ndarray:
    return _query_ids(at)[:, None, :, None] == _document_ids(at)[:, None, None, :]


def _packed_documents(at: Layout) -> np.ndarray:
    """Pairs in one document; queries have the ids of the last keys, or their own if they outnumber the keys."""
    return (
        oracle.documents(_document_ids(at).tolist(), at.queries, at.keys)
        if at.queries <= at.keys
        else _same_document(at)
    )


def _documents(at: Layout) -> masks.Mask:
    ids = _tensor(_document_ids(at))
    return masks.documents(ids) if at.queries <= at.keys else masks.documents(ids, query_ids=_tensor(_query_ids(at)))


def _global(at: Layout) -> np.ndarray:
    return oracle.global_tokens([0, 3], at.queries, at.keys)


def _global_flags(at: Layout) -> np.ndarray:
    flags = _random_flags(at)
    of_query = np.stack([[0 <= at_ < len(row) and row[at_] for at_ in _positions(at)] for row in flags])
    return of_query[:, None, :, None] | flags[:, None, None, :]


def _dense_blocks(at: Layout, mask: masks.Mask) -> np.ndarray:
    """Return the mask's own cells: an oracle cannot know the random draw; property tests check the blocks per row."""
    return mask.dense(at.queries, at.keys).numpy()


def _random_keep(*shape: str, chance: float = 0.5) -> Callable[[Layout], np.ndarray]:
    """Random bools whose shape is given by names of sizes of the layout, or "1" for a broadcast dimension."""
    return lambda at: _random_bools(*(1 if name == "1" else getattr(at, name) for name in shape), chance=chance)


def _keep_mask(array: Callable[[Layout], np.ndarray]) -> Callable[[Layout], masks.Mask]:
    return lambda at: masks.keep(_tensor(array(at)))


_FULL = _random_keep("batch", "heads", "queries", "keys")
_ROWS = _random_keep("1", "1", "queries", "1")
_PER_BATCH = _random_keep("batch", "1", "queries", "keys")
_PER_HEAD = _random_keep("1", "heads", "queries", "keys")
_KEYS_PER_HEAD = _random_keep("1", "heads", "1", "keys")
_SPARSE = _random_keep("batch", "heads", "queries", "keys", chance=0.15)

_few_blocks = masks.random_blocks(1, block=3, seed=5)
_causal_mask, _near_window = masks.causal(), masks.window(2, 1)


def _padding_mask(at: Layout) -> masks.Mask:
    return masks.padding(_lengths(at))


def _left_padding_mask(at: Layout) -> masks.Mask:
    return masks.padding(_lengths(at), side="left")


MASK_CASES = (
    MaskCase("none", lambda at: None, lambda at: np.ones((1, 1, 1, 1), dtype=bool)),
    MaskCase("causal", lambda at: _causal_mask, _causal),
    MaskCase(
        "causal from the start",
        lambda at: masks.causal(align="start"),
        lambda at: np.tri(at.queries, at.keys, dtype=bool),
    ),
    MaskCase("window", lambda at: _near_window, _window(2, 1)),
    MaskCase("window of itself", lambda at: masks.window(0, 0), _window(0, 0)),
    MaskCase("window open on the left", lambda at: masks.window(None, 2), _window(None, 2)),
    MaskCase("window open on the right", lambda at: masks.window(3, None), _window(3, None)),
    MaskCase("window open on both sides", lambda at: masks.window(None, None), _window(None, None)),
    MaskCase("padding", _padding_mask, _padding),
    MaskCase("padding on the left", _left_padding_mask, _left_padding),
    MaskCase(
        "padding of all",
        lambda at: masks.padding([0, at.keys]),
        lambda at: oracle.padding([0, at.keys], at.queries, at.keys),
    ),
    MaskCase(
        "padding by token id",
        lambda at: masks.padding_of(_tensor(_document_ids(at)), 1),
        lambda at: (_document_ids(at) != 1)[:, None, None, :],
    ),
    MaskCase("documents", _documents, _packed_documents),
    MaskCase(
        "documents of two sequences",
        lambda at: masks.documents(_tensor(_document_ids(at)), query_ids=_tensor(_query_ids(at))),
        _same_document,
    ),
    MaskCase("global tokens", lambda at: masks.global_tokens([0, 3]), _global),
    MaskCase("global tokens per text", lambda at: masks.global_tokens(_tensor(_random_flags(at))), _global_flags),
    MaskCase("random blocks", lambda at: _few_blocks, lambda at: _dense_blocks(at, _few_blocks)),
    MaskCase(
        "random blocks per head",
        lambda at: masks.random_blocks(1, block=2, heads=at.heads),
        lambda at: _dense_blocks(at, masks.random_blocks(1, block=2, heads=at.heads)),
    ),
    MaskCase("kept", _keep_mask(_random_keep("queries", "keys")), _random_keep("queries", "keys")),
    MaskCase("kept per text", _keep_mask(_PER_BATCH), _PER_BATCH),
    MaskCase("kept per head", _keep_mask(_PER_HEAD), _PER_HEAD),
    MaskCase("kept per text and head", _keep_mask(_FULL), _FULL),
    MaskCase("kept per text and head, few", _keep_mask(_SPARSE), _SPARSE),
    MaskCase("keys hidden per head", _keep_mask(_KEYS_PER_HEAD), _KEYS_PER_HEAD),
    MaskCase("whole rows", _keep_mask(_ROWS), _ROWS),
    MaskCase(
        "nothing",
        _keep_mask(_random_keep("1", "1", "1", "1", chance=0.0)),
        _random_keep("1", "1", "1", "1", chance=0.0),
    ),
    MaskCase("blocked", lambda at: masks.blocked(_tensor(_PER_HEAD(at))), lambda at: ~_PER_HEAD(at)),
    MaskCase("causal & padding", lambda at: _causal_mask & _padding_mask(at), lambda at: _causal(at) & _padding(at)),
    MaskCase(
        "causal & left padding",
        lambda at: _causal_mask & _left_padding_mask(at),
        lambda at: _causal(at) & _left_padding(at),
    ),
    MaskCase(
        "causal & documents & padding",
        lambda at: _causal_mask & _documents(at) & _padding_mask(at),
        lambda at: _causal(at) & _packed_documents(at) & _padding(at),
    ),
    MaskCase(
        "(window | global) & padding",
        lambda at: (_near_window | masks.global_tokens([0, 3])) & _padding_mask(at),
        lambda at: (_window(2, 1)(at) | _global(at)) & _padding(at),
    ),
    MaskCase(
        "(window | random | global) & padding",
        lambda at: (_near_window | _few_blocks | masks.global_tokens([0, 3])) & _padding_mask(at),
        lambda at: (_window(2, 1)(at) | _dense_blocks(at, _few_blocks) | _global(at)) & _padding(at),
    ),
    MaskCase("~causal", lambda at: ~_causal_mask, lambda at: ~_causal(at)),
    MaskCase(
        "~~(causal & kept per head)",
        lambda at: ~~(_causal_mask & _keep_mask(_PER_HEAD)(at)),
        lambda at: _causal(at) & _PER_HEAD(at),
    ),
    MaskCase(
        "~(window & padding) | documents",
        lambda at: ~(_near_window & _padding_mask(at)) | _documents(at),
        lambda at: ~(_window(2, 1)(at) & _padding(at)) | _packed_documents(at),
    ),
    MaskCase(
        "~(~causal | ~left padding)",
        lambda at: ~(~_causal_mask | ~_left_padding_mask(at)),
        lambda at: _causal(at) & _left_padding(at),
    ),
    MaskCase(
        "(kept per text | kept per head) & ~global",
        lambda at: (_keep_mask(_PER_BATCH)(at) | _keep_mask(_PER_HEAD)(at)) & ~masks.global_tokens([0, 3]),
        lambda at: (_PER_BATCH(at) | _PER_HEAD(at)) & ~_global(at),
    ),
    MaskCase(
        "padding & ~padding",
        lambda at: _padding_mask(at) & ~_padding_mask(at),
        lambda at: np.zeros((1, 1, 1, 1), dtype=bool),
    ),
)


@cache
def expand_allowed(trial: MaskCase, at: Layout) -> np.ndarray:
    """The oracle's mask (batch, heads, queries, keys), read-only."""
    return np.broadcast_to(trial.allowed(at), (at.batch, at.heads, at.queries, at.keys))

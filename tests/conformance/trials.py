"""The sizes and the masks that every promise is tried on.

Sizes are primes, so that a swapped axis cannot hide, except where heads share keys. Each mask comes with the same mask
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


class Trial(NamedTuple):
    """A mask, and what it should be: bool, broadcastable to (batch, heads, queries, keys)."""

    name: str
    mask: Callable[[Layout], masks.Mask | None]
    allowed: Callable[[Layout], np.ndarray]


def _coins(*shape: int, chance: float = 0.5) -> np.ndarray:
    """The same random bools for the same shape."""
    return np.random.default_rng([*shape, int(100 * chance)]).random(shape) < chance


def _lengths(at: Layout) -> list[int]:
    return [at.keys - 2, 3]


def _ids(at: Layout) -> np.ndarray:
    """Document ids of the keys: runs of 3, and for the second entry runs of 2."""
    return np.stack([np.arange(at.keys) // 3, np.arange(at.keys) // 2])


def _query_ids(at: Layout) -> np.ndarray:
    return np.stack([np.arange(at.queries) // 2, np.arange(at.queries) % 3])


def _flags(at: Layout) -> np.ndarray:
    return _coins(at.batch, at.keys, chance=0.3)


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
    return _query_ids(at)[:, None, :, None] == _ids(at)[:, None, None, :]


def _packed(at: Layout) -> np.ndarray:
    """Documents of the keys, queries being the last of them; where there are more queries they have their own."""
    return oracle.documents(_ids(at).tolist(), at.queries, at.keys) if at.queries <= at.keys else _same_document(at)


def _documents(at: Layout) -> masks.Mask:
    ids = _tensor(_ids(at))
    return masks.documents(ids) if at.queries <= at.keys else masks.documents(ids, query_ids=_tensor(_query_ids(at)))


def _global(at: Layout) -> np.ndarray:
    return oracle.global_tokens([0, 3], at.queries, at.keys)


def _global_flags(at: Layout) -> np.ndarray:
    flags = _flags(at)
    of_query = np.stack([[0 <= at_ < len(row) and row[at_] for at_ in _positions(at)] for row in flags])
    return of_query[:, None, :, None] | flags[:, None, None, :]


def _blocks(at: Layout, mask: masks.Mask) -> np.ndarray:
    """What was drawn is not for an oracle to know; that each row has so many blocks is a property of its own."""
    return mask.dense(at.queries, at.keys).numpy()


def _kept(*shape: str, chance: float = 0.5) -> Callable[[Layout], np.ndarray]:
    """Random bools; a name of a size, or "1" where it is the same for all."""
    return lambda at: _coins(*(1 if name == "1" else getattr(at, name) for name in shape), chance=chance)


def _keep(array: Callable[[Layout], np.ndarray]) -> Callable[[Layout], masks.Mask]:
    return lambda at: masks.keep(_tensor(array(at)))


_FULL = _kept("batch", "heads", "queries", "keys")
_ROWS = _kept("1", "1", "queries", "1")
_PER_BATCH = _kept("batch", "1", "queries", "keys")
_PER_HEAD = _kept("1", "heads", "queries", "keys")
_HEADS_HIDE = _kept("1", "heads", "1", "keys")
_ONE_LEFT = _kept("batch", "heads", "queries", "keys", chance=0.15)

_few = masks.random_blocks(1, block=3, seed=5)
_causal_m, _near = masks.causal(), masks.window(2, 1)


def _padding_m(at: Layout) -> masks.Mask:
    return masks.padding(_lengths(at))


def _left_m(at: Layout) -> masks.Mask:
    return masks.padding(_lengths(at), side="left")


TRIALS = (
    Trial("none", lambda at: None, lambda at: np.ones((1, 1, 1, 1), dtype=bool)),
    Trial("causal", lambda at: _causal_m, _causal),
    Trial(
        "causal from the start",
        lambda at: masks.causal(align="start"),
        lambda at: np.tri(at.queries, at.keys, dtype=bool),
    ),
    Trial("window", lambda at: _near, _window(2, 1)),
    Trial("window of itself", lambda at: masks.window(0, 0), _window(0, 0)),
    Trial("window open on the left", lambda at: masks.window(None, 2), _window(None, 2)),
    Trial("window open on the right", lambda at: masks.window(3, None), _window(3, None)),
    Trial("window open on both sides", lambda at: masks.window(None, None), _window(None, None)),
    Trial("padding", _padding_m, _padding),
    Trial("padding on the left", _left_m, _left_padding),
    Trial(
        "padding of all",
        lambda at: masks.padding([0, at.keys]),
        lambda at: oracle.padding([0, at.keys], at.queries, at.keys),
    ),
    Trial(
        "padding by token id",
        lambda at: masks.padding_of(_tensor(_ids(at)), 1),
        lambda at: (_ids(at) != 1)[:, None, None, :],
    ),
    Trial("documents", _documents, _packed),
    Trial(
        "documents of two sequences",
        lambda at: masks.documents(_tensor(_ids(at)), query_ids=_tensor(_query_ids(at))),
        _same_document,
    ),
    Trial("global tokens", lambda at: masks.global_tokens([0, 3]), _global),
    Trial("global tokens per text", lambda at: masks.global_tokens(_tensor(_flags(at))), _global_flags),
    Trial("random blocks", lambda at: _few, lambda at: _blocks(at, _few)),
    Trial(
        "random blocks per head",
        lambda at: masks.random_blocks(1, block=2, heads=at.heads),
        lambda at: _blocks(at, masks.random_blocks(1, block=2, heads=at.heads)),
    ),
    Trial("kept", _keep(_kept("queries", "keys")), _kept("queries", "keys")),
    Trial("kept per text", _keep(_PER_BATCH), _PER_BATCH),
    Trial("kept per head", _keep(_PER_HEAD), _PER_HEAD),
    Trial("kept per text and head", _keep(_FULL), _FULL),
    Trial("kept per text and head, few", _keep(_ONE_LEFT), _ONE_LEFT),
    Trial("keys hidden per head", _keep(_HEADS_HIDE), _HEADS_HIDE),
    Trial("whole rows", _keep(_ROWS), _ROWS),
    Trial("nothing", _keep(_kept("1", "1", "1", "1", chance=0.0)), _kept("1", "1", "1", "1", chance=0.0)),
    Trial("blocked", lambda at: masks.blocked(_tensor(_PER_HEAD(at))), lambda at: ~_PER_HEAD(at)),
    Trial("causal & padding", lambda at: _causal_m & _padding_m(at), lambda at: _causal(at) & _padding(at)),
    Trial("causal & left padding", lambda at: _causal_m & _left_m(at), lambda at: _causal(at) & _left_padding(at)),
    Trial(
        "causal & documents & padding",
        lambda at: _causal_m & _documents(at) & _padding_m(at),
        lambda at: _causal(at) & _packed(at) & _padding(at),
    ),
    Trial(
        "(window | global) & padding",
        lambda at: (_near | masks.global_tokens([0, 3])) & _padding_m(at),
        lambda at: (_window(2, 1)(at) | _global(at)) & _padding(at),
    ),
    Trial(
        "(window | random | global) & padding",
        lambda at: (_near | _few | masks.global_tokens([0, 3])) & _padding_m(at),
        lambda at: (_window(2, 1)(at) | _blocks(at, _few) | _global(at)) & _padding(at),
    ),
    Trial("~causal", lambda at: ~_causal_m, lambda at: ~_causal(at)),
    Trial(
        "~~(causal & kept per head)",
        lambda at: ~~(_causal_m & _keep(_PER_HEAD)(at)),
        lambda at: _causal(at) & _PER_HEAD(at),
    ),
    Trial(
        "~(window & padding) | documents",
        lambda at: ~(_near & _padding_m(at)) | _documents(at),
        lambda at: ~(_window(2, 1)(at) & _padding(at)) | _packed(at),
    ),
    Trial(
        "~(~causal | ~left padding)",
        lambda at: ~(~_causal_m | ~_left_m(at)),
        lambda at: _causal(at) & _left_padding(at),
    ),
    Trial(
        "(kept per text | kept per head) & ~global",
        lambda at: (_keep(_PER_BATCH)(at) | _keep(_PER_HEAD)(at)) & ~masks.global_tokens([0, 3]),
        lambda at: (_PER_BATCH(at) | _PER_HEAD(at)) & ~_global(at),
    ),
    Trial(
        "padding & ~padding", lambda at: _padding_m(at) & ~_padding_m(at), lambda at: np.zeros((1, 1, 1, 1), dtype=bool)
    ),
)


@cache
def allowed_of(trial: Trial, at: Layout) -> np.ndarray:
    """What the oracle allows, in full; read-only."""
    return np.broadcast_to(trial.allowed(at), (at.batch, at.heads, at.queries, at.keys))

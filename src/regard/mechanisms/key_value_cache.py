"""Key-value cache: keys and values of all earlier tokens, as an immutable value that is passed in and returned.

    cache = KeyValueCache.empty()
    output, cache = attention(tokens, mask=causal(), cache=cache)

A cache never changes: ``extended`` returns a new one. The first keys and values are stored without a copy. Storage
grows by doubling and is shared between a cache and the one made from it, so under ``torch.no_grad`` a step costs the
new tokens only. Extending an older cache a second time (beam search, branches) copies it first, and so does a step with
gradients enabled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import OptionError, ShapeError, short_repr
from regard.mechanisms.state import State
from regard.validation import check_tokens


@final
@dataclass
class _Storage:
    """Preallocated keys and values, of which the first tokens are written.

    ``unclaimed_lengths`` contains the number of written tokens, until a cache of that length removes it to append to
    them. Removing a key from a dict is atomic: of several threads one gets it, and the others copy.
    """

    key: Tensor
    value: Tensor
    unclaimed_lengths: dict[int, bool]


@final
@dataclass(frozen=True, eq=False)
class KeyValueCache(State):
    """Key-value cache: keys (batch, key_heads, length, head_dim) and values (.., value_dim) of ``length`` tokens."""

    length: int = 0
    _storage: _Storage | None = field(default=None, repr=False)

    @classmethod
    def empty(cls) -> KeyValueCache:
        """Make a cache without tokens; the first keys and values decide batch size, heads, dtype and device."""
        return cls()

    @property
    def key(self) -> Float[Tensor, "batch key_heads length head_dim"]:
        """The keys, as a view of the storage."""
        return self._require_storage().key[:, :, : self.length]

    @property
    def value(self) -> Float[Tensor, "batch key_heads length value_dim"]:
        """The values, as a view of the storage."""
        return self._require_storage().value[:, :, : self.length]

    def extended(self, key: Tensor, value: Tensor) -> KeyValueCache:
        """Return a cache with more tokens at the end. Raises ShapeError if they do not fit the earlier ones."""
        check_tokens("key", key, "(batch, key_heads, new, head_dim)")
        check_tokens("value", value, "(batch, key_heads, new, value_dim)")
        _check_pair(key, value)
        length = self.length + key.shape[2]
        if self._storage is None or self.length == 0:
            return KeyValueCache(length, _Storage(key, value, {length: True}))
        _check_fits(self.key, key)
        _check_fits(self.value, value)
        if torch.is_grad_enabled():
            # Writing in place would change tensors that the backward pass needs, if only for the query's gradient.
            whole = (torch.cat([self.key, key], dim=2), torch.cat([self.value, value], dim=2))
            return KeyValueCache(length, _Storage(*whole, {length: True}))
        storage = self._storage
        frozen = storage.key.is_inference() and not torch.is_inference_mode_enabled()
        if frozen or storage.key.shape[2] < length or not storage.unclaimed_lengths.pop(self.length, False):
            storage = _Storage(_copy_with_room(self.key, length), _copy_with_room(self.value, length), {})
        storage.key[:, :, self.length : length] = key
        storage.value[:, :, self.length : length] = value
        storage.unclaimed_lengths[length] = True
        return KeyValueCache(length, storage)

    def reordered(self, entries: Int[Tensor, " batch"]) -> KeyValueCache:
        """Select batch entries by index, in that order, as beam search does. Raises OptionError for invalid indices."""
        if self._storage is None:
            return self
        # Includes the free space: beam search appends the next token, which would else need another copy.
        key, value = (take_rows(side, entries) for side in (self._storage.key, self._storage.value))
        return KeyValueCache(self.length, _Storage(key, value, {self.length: True}))

    def _require_storage(self) -> _Storage:
        if self._storage is None:
            raise ShapeError(
                "the cache is empty",
                expected="a cache that was extended at least once",
                got="no tokens",
                do="check cache.length first",
            )
        return self._storage


def take_rows(rows: Tensor, entries: object) -> Tensor:
    """Select rows by index. Raises OptionError if ``entries`` is out of range, or not a tensor of integers."""
    try:
        if isinstance(entries, Tensor) and entries.is_meta and not rows.is_meta:
            raise IndexError("entries without values")
        return rows.index_select(0, entries)  # type: ignore[arg-type]
    except (IndexError, RuntimeError, TypeError) as error:  # index_select checks them: checking first would do it twice
        raise OptionError(
            "entries names rows that do not exist",
            expected=f"a tensor (entries,) of integers, each from 0 to {rows.shape[0] - 1}, on {rows.device}",
            got=short_repr(entries),
            do="for example torch.tensor([0, 2]) for rows 0 and 2, counted from 0",
        ) from error


def _copy_with_room(tensor: Tensor, length: int) -> Tensor:
    """Copy keys or values to a tensor with space for twice ``length`` tokens."""
    room = tensor.new_empty(*tensor.shape[:2], 2 * length, tensor.shape[3])
    room[:, :, : tensor.shape[2]] = tensor
    return room


def _check_pair(key: Tensor, value: Tensor) -> None:
    if not key.dim() == value.dim() == 4 or key.shape[:3] != value.shape[:3]:
        raise ShapeError(
            "key and value do not fit each other",
            expected="key (batch, key_heads, new, head_dim), value (batch, key_heads, new, value_dim)",
            got=f"key {tuple(key.shape)}, value {tuple(value.shape)}",
            do="compute both from the same tokens",
        )


def _check_fits(before: Tensor, new: Tensor) -> None:
    same = (before.shape[0], before.shape[1], before.shape[3]) == (new.shape[0], new.shape[1], new.shape[3])
    if not same or before.dtype != new.dtype or before.device != new.device:
        raise ShapeError(
            "new tokens do not fit the cache",
            expected=f"(batch, key_heads, new, head_dim) like {tuple(before.shape)} {before.dtype} on {before.device}",
            got=f"{tuple(new.shape)} {new.dtype} on {new.device}",
            do="start from KeyValueCache.empty() for another batch or model",
        )

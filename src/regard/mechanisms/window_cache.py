"""Cache of a sliding window: keys and values of the last tokens alone, for a layer whose mask is a causal window.

    query i attends to keys i - size + 1 .. i          Beltagy et al. 2020 (Longformer), section 3.1; Jiang et al. 2023

So after n tokens the next query needs at most the last size - 1 of them, and memory does not grow with the text.

    rows of the storage    [ dropped | kept: the last size - 1 tokens | new tokens | room ]

New tokens are written behind the others. When the room is used up, the tokens that are kept move to the beginning of a
new storage, whose room is a part of the window: so a step copies a constant number of tokens on average. Like
``KeyValueCache`` it is an immutable value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import LARGEST_LENGTH, check_count
from regard.kernels.int8_rows import check_cache_format
from regard.mechanisms.key_value_cache import (
    Storage,
    TokenCache,
    check_dtype_of_tokens,
    check_new_tokens,
    copy_with_room,
    read_tokens,
    require_storage,
    take_rows,
)
from regard.mechanisms.state import StateBytes

_LEAST_ROOM, _WINDOW_SHARE = 64, 4
"""Room for new tokens: at least so many, and at least the window divided by this."""


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class WindowCache(TokenCache):
    """Cache of a window of ``size`` tokens, the query's own included, after ``length`` tokens.

    ``key`` (batch, key_heads, keys, head_dim) and ``value`` hold the newest tokens and at most size - 1 before them.
    Masks and biases over these keys are right if they depend on distances alone, since queries are aligned with the
    end of the keys.
    """

    size: int
    length: int = 0
    cache_format: str | None = None
    _begin: int = field(default=0, repr=False)  # the rows of the storage in use: begin to end
    _end: int = field(default=0, repr=False)
    _storage: Storage | None = field(default=None, repr=False)

    @classmethod
    def empty(cls, size: int, cache_format: str | None = None) -> WindowCache:
        """Make a cache without tokens, for a window of ``size`` tokens, with the formats of ``KeyValueCache.empty``.

        Raises OptionError for an invalid size or format.
        """
        check_count("size", size, maximum=LARGEST_LENGTH)
        return cls(size, cache_format=check_cache_format(cache_format))

    @property
    def key(self) -> Float[Tensor, "batch key_heads keys head_dim"]:
        """The keys that the newest queries may attend to, as a view of the storage."""
        return self._rows("key")

    @property
    def value(self) -> Float[Tensor, "batch key_heads keys value_dim"]:
        """Their values, as a view of the storage."""
        return self._rows("value")

    @property
    def storage_rows(self) -> tuple[Tensor, Tensor, int, int]:
        """The storage of keys and of values, and its rows in use."""
        tensors = require_storage(self._storage).tensors
        return tensors["key"], tensors["value"], self._begin, self._end

    @property
    def inputs(self) -> dict[str, Shaped[Tensor, "batch heads keys size"]]:
        """The extra inputs that belong to the keys, by name; empty for most mechanisms."""
        names = () if self._storage is None else self._storage.tensors
        return {name: self._rows(name) for name in names if name not in ("key", "value")}

    @property
    def bytes(self) -> StateBytes:
        """The memory of one sequence that is longer than the window."""
        return StateBytes(constant=0 if self._storage is None else self.size * self._storage.bytes_per_token)

    def visible_keys(self, new: int) -> int:
        """The number of keys that the next ``new`` queries are shown: the new ones, and the kept ones before them."""
        return self._num_kept + new

    def extended(self, key: Tensor, value: Tensor, inputs: Mapping[str, Tensor] | None = None) -> WindowCache:
        """Return a cache with more tokens at the end, which still holds all that the first of them may attend to.

        Raises ShapeError if they do not fit the earlier ones.
        """
        new = read_tokens(key, value, inputs, self.cache_format)
        added, kept, begin = key.shape[2], self._num_kept, self._end - self._num_kept
        if self._storage is None or self.length == 0:
            return self._with(0, added, Storage(new, {added: True}, key.dtype), added)
        check_dtype_of_tokens(key, self._storage)
        old = {name: tensor[:, :, begin : self._end] for name, tensor in self._storage.tensors.items()}
        check_new_tokens(old, new)
        if torch.is_grad_enabled():
            # Writing in place would change tensors that the backward pass needs, if only for the query's gradient.
            whole = {name: torch.cat([old[name], new[name]], dim=2) for name in old}
            return self._with(0, kept + added, self._storage.with_tensors(whole, kept + added), added)
        following = self._with_room(self._storage, added)
        end = following._end
        for name, tensor in require_storage(following._storage).tensors.items():
            tensor[:, :, end - added : end] = new[name]
        return following

    def reserved(self, new: int) -> WindowCache | None:
        """Return a cache with ``new`` more tokens, which are not written yet. See ``State.reserved``."""
        storage = self._storage
        if storage is None or self.length == 0 or len(storage.tensors) > 2 or torch.is_grad_enabled():
            return None
        return self._with_room(storage, new)

    def trimmed(self) -> WindowCache:
        """Return the cache without the tokens that no later query may attend to.

        The storage of a text that is much longer than the window is released.
        """
        if self._storage is None or self._end - self._begin <= self._num_kept:
            return self
        begin, storage = self._end - self._num_kept, self._storage
        if storage.tensors["key"].shape[2] <= self._capacity(self.size):
            return self._with(begin, self._end, storage)
        kept = {name: tensor[:, :, begin : self._end] for name, tensor in storage.tensors.items()}
        if torch.is_grad_enabled():
            copies = {name: tensor.clone() for name, tensor in kept.items()}
        else:
            copies = {name: copy_with_room(tensor, self._capacity(self._num_kept)) for name, tensor in kept.items()}
        return self._with(0, self._num_kept, storage.with_tensors(copies, self._num_kept))

    def reordered(self, entries: Int[Tensor, " batch"]) -> WindowCache:
        """Select batch entries by index, in that order, as beam search does. Raises OptionError for invalid indices."""
        if self._storage is None:
            return self
        tensors = {name: take_rows(tensor, entries) for name, tensor in self._storage.tensors.items()}
        return self._with(self._begin, self._end, self._storage.with_tensors(tensors, self._end))

    @property
    def _num_kept(self) -> int:
        """The number of tokens that the next query may attend to."""
        return min(self._end - self._begin, self.size - 1)

    def _with_room(self, storage: Storage, added: int) -> WindowCache:
        """Return a cache with ``added`` more tokens, not written yet, in a storage that it alone appends to."""
        kept, begin, end = self._num_kept, self._end - self._num_kept, self._end + added
        if not storage.claim(self._end, end):
            old = {name: tensor[:, :, begin : self._end] for name, tensor in storage.tensors.items()}
            begin, end = 0, kept + added
            copies = {name: copy_with_room(tensor, self._capacity(end)) for name, tensor in old.items()}
            storage = storage.with_tensors(copies, end)
        storage.unclaimed_lengths[end] = True
        return self._with(begin, end, storage, added)

    def _capacity(self, tokens: int) -> int:
        """The size of a new storage for this many tokens: twice as many, until the room is a part of the window."""
        return min(2 * tokens, tokens + max(_LEAST_ROOM, self.size // _WINDOW_SHARE))

    def _rows(self, name: str) -> Tensor:
        return require_storage(self._storage).read(name, self._begin, self._end)

    def _with(self, begin: int, end: int, storage: Storage, added: int = 0) -> WindowCache:
        return WindowCache(self.size, self.length + added, self.cache_format, begin, end, storage)

"""Key-value cache: keys and values of all earlier tokens, as an immutable value that is passed in and returned.

Extra inputs of a mechanism that belong to keys (``extra_input``) are cached with them. ``TokenCache`` is what this
cache and ``WindowCache`` have in common.

    cache = KeyValueCache.empty()
    output, cache = attention(tokens, mask=causal(), cache=cache)

A cache never changes: ``extended`` returns a new one. The first keys and values are stored without a copy. Storage
grows by doubling and is shared between a cache and the one made from it, so under ``torch.no_grad`` a step costs the
new tokens only. Extending an older cache a second time (beam search, branches) copies it first, and so does a step with
gradients enabled.

A cache of ``cache_format`` "int8" rounds keys and values when they are stored (``kernels.int8_rows``), which takes half
the memory of bfloat16. Every query attends to the rounded ones, also to those of the tokens of its own step: ``key``
and ``value`` are copies of them in the dtype of the tokens. Kernels read the stored rows in place.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, RefusedError, ShapeError, short_repr
from regard.fields import repr_of_fields
from regard.huge_pages import new_empty
from regard.kernels.int8_rows import check_cache_format, round_rows, widen_rows
from regard.mechanisms.state import State, StateBytes
from regard.validation import check_tokens


class TokenCache(State):
    """A cache of the keys and values of one sequence length, side by side: of all tokens, or of the last ones.

    A step of decoding extends it, attends to ``key`` and ``value``, and returns the cache ``trimmed``.
    """

    cache_format: str | None
    """The format in which keys and values are stored; None is their dtype."""

    @property
    @abstractmethod
    def key(self) -> Float[Tensor, "batch key_heads keys head_dim"]:
        """The keys that the newest queries may attend to, as a view of the storage."""

    @property
    @abstractmethod
    def value(self) -> Float[Tensor, "batch key_heads keys value_dim"]:
        """Their values, as a view of the storage."""

    @property
    @abstractmethod
    def storage_rows(self) -> tuple[Tensor, Tensor, int, int]:
        """The storage of keys (batch, key_heads, rows, head_dim), the storage of values, and which of their rows
        ``key`` and ``value`` are: the first one, and the one behind the last. Rounded rows are those of ``int8_rows``.
        """

    @property
    @final
    def stored(self) -> tuple[Tensor, Tensor]:
        """The rows of keys and of values as they are stored, as views."""
        key, value, begin, end = self.storage_rows
        return key[:, :, begin:end], value[:, :, begin:end]

    @property
    @abstractmethod
    def inputs(self) -> dict[str, Shaped[Tensor, "batch heads keys size"]]:
        """The extra inputs that belong to the keys, by name; empty for most mechanisms."""

    @abstractmethod
    def extended(self, key: Tensor, value: Tensor, inputs: Mapping[str, Tensor] | None = None) -> Self:
        """Return a cache with more tokens at the end. Raises ShapeError if they do not fit the earlier ones."""

    @abstractmethod
    def trimmed(self) -> Self:
        """Return the cache without the tokens that no later query may attend to."""


@final
@dataclass
class Storage:
    """Preallocated keys, values and extra inputs by name, of which the first tokens are written.

    ``unclaimed_lengths`` contains the number of written tokens, until a cache of that length removes it to append to
    them. Removing a key from a dict is atomic: of several threads one gets it, and the others copy.
    """

    __repr__ = repr_of_fields

    tensors: dict[str, Tensor]
    unclaimed_lengths: dict[int, bool]
    dtype: torch.dtype
    """The dtype of the tokens, which may be rounded."""

    def with_tensors(self, tensors: dict[str, Tensor], length: int) -> Storage:
        """Make a storage of other tensors, of which ``length`` tokens are written."""
        return Storage(tensors, {length: True}, self.dtype)

    def read(self, name: str, begin: int, end: int) -> Tensor:
        """Return rows ``begin`` to ``end`` - 1 of an input: a view, or, if they are rounded, a copy in ``dtype``."""
        rows = self.tensors[name][:, :, begin:end]
        return widen_rows(rows, self.dtype) if rows.dtype is torch.int8 and name in ("key", "value") else rows

    @property
    def bytes_per_token(self) -> int:
        """Bytes for each token of a sequence, over all heads."""
        return sum(tensor[:1, :, :1].nbytes for tensor in self.tensors.values())

    def claim(self, written: int, length: int) -> bool:
        """Whether a cache of ``written`` tokens may append up to ``length`` tokens in place; no other one may then."""
        key = self.tensors["key"]
        is_frozen = key.is_inference() and not torch.is_inference_mode_enabled()
        return not is_frozen and key.shape[2] >= length and self.unclaimed_lengths.pop(written, False)


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class KeyValueCache(TokenCache):
    """Key-value cache: keys (batch, key_heads, length, head_dim) and values (.., value_dim) of ``length`` tokens."""

    length: int = 0
    cache_format: str | None = None
    _storage: Storage | None = field(default=None, repr=False)

    @classmethod
    def empty(cls, cache_format: str | None = None) -> KeyValueCache:
        """Make a cache without tokens; the first keys and values decide batch size, heads, dtype and device.

        ``cache_format`` "int8" rounds them; None stores them as they are. Raises OptionError for another format.
        """
        return cls(cache_format=check_cache_format(cache_format))

    @property
    def key(self) -> Float[Tensor, "batch key_heads length head_dim"]:
        """The keys, as a view of the storage."""
        return require_storage(self._storage).read("key", 0, self.length)

    @property
    def value(self) -> Float[Tensor, "batch key_heads length value_dim"]:
        """The values, as a view of the storage."""
        return require_storage(self._storage).read("value", 0, self.length)

    @property
    def storage_rows(self) -> tuple[Tensor, Tensor, int, int]:
        """The storage of keys and of values, and its rows in use: the first ones."""
        tensors = require_storage(self._storage).tensors
        return tensors["key"], tensors["value"], 0, self.length

    @property
    def inputs(self) -> dict[str, Shaped[Tensor, "batch heads length size"]]:
        """The extra inputs that belong to the keys, by name; empty for most mechanisms."""
        tensors = {} if self._storage is None else self._storage.tensors
        return {name: tensors[name][:, :, : self.length] for name in tensors if name not in ("key", "value")}

    @property
    def bytes_per_token(self) -> int:
        """Bytes for each token of a sequence, over all heads. Raises ShapeError for an empty cache."""
        return require_storage(self._storage).bytes_per_token

    @property
    def bytes(self) -> StateBytes:
        """The memory of one sequence: keys, values and extra inputs of each token."""
        return StateBytes(0 if self._storage is None else self.bytes_per_token)

    def extended(self, key: Tensor, value: Tensor, inputs: Mapping[str, Tensor] | None = None) -> KeyValueCache:
        """Return a cache with more tokens at the end. Raises ShapeError if they do not fit the earlier ones.

        ``inputs`` are extra inputs of the new keys, by name; the same names at every step.
        """
        new = read_tokens(key, value, inputs, self.cache_format)
        length = self.length + key.shape[2]
        if self._storage is None or self.length == 0:
            return self._with(length, Storage(new, {length: True}, key.dtype))
        check_dtype_of_tokens(key, self._storage)
        old = {name: tensor[:, :, : self.length] for name, tensor in self._storage.tensors.items()}
        check_new_tokens(old, new)
        if torch.is_grad_enabled():
            # Writing in place would change tensors that the backward pass needs, if only for the query's gradient.
            whole = {name: torch.cat([old[name], new[name]], dim=2) for name in old}
            return self._with(length, self._storage.with_tensors(whole, length))
        storage = self._claim_storage(self._storage, length)
        for name, tensor in storage.tensors.items():
            tensor[:, :, self.length : length] = new[name]
        return self._with(length, storage)

    def reserved(self, new: int) -> KeyValueCache | None:
        """Return a cache with ``new`` more tokens, which are not written yet. See ``State.reserved``."""
        storage = self._storage
        if storage is None or self.length == 0 or len(storage.tensors) > 2 or torch.is_grad_enabled():
            return None
        length = self.length + new
        return self._with(length, self._claim_storage(storage, length))

    def trimmed(self) -> KeyValueCache:
        """Return the cache: later queries may attend to all of its tokens."""
        return self

    def reordered(self, entries: Int[Tensor, " batch"]) -> KeyValueCache:
        """Select batch entries by index, in that order, as beam search does. Raises OptionError for invalid indices."""
        if self._storage is None:
            return self
        # Includes the free space: beam search appends the next token, which would else need another copy.
        tensors = {name: take_rows(tensor, entries) for name, tensor in self._storage.tensors.items()}
        return self._with(self.length, self._storage.with_tensors(tensors, self.length))

    def _with(self, length: int, storage: Storage) -> KeyValueCache:
        return KeyValueCache(length, self.cache_format, storage)

    def _claim_storage(self, storage: Storage, length: int) -> Storage:
        """Return a storage of these tokens to which this cache alone may append up to ``length``: a copy if need be."""
        if not storage.claim(self.length, length):
            old = {name: tensor[:, :, : self.length] for name, tensor in storage.tensors.items()}
            storage = storage.with_tensors(
                {name: copy_with_room(tensor, 2 * length) for name, tensor in old.items()}, length
            )
        storage.unclaimed_lengths[length] = True
        return storage


def require_storage(storage: Storage | None) -> Storage:
    """Return the storage of a cache. Raises ShapeError for an empty one."""
    if storage is None:
        raise ShapeError(
            "the cache is empty",
            expected="a cache that was extended at least once",
            got="no tokens",
            do="check cache.length first",
        )
    return storage


def take_rows(rows: Tensor, entries: Any) -> Tensor:
    """Select rows by index. Raises OptionError if ``entries`` is out of range, or not a tensor of integers."""
    try:
        if isinstance(entries, Tensor) and entries.is_meta and not rows.is_meta:
            raise IndexError("entries without values")
        return rows.index_select(0, entries)
    except (IndexError, RuntimeError, TypeError) as error:  # index_select checks them: checking first would do it twice
        raise OptionError(
            "entries names rows that do not exist" if isinstance(entries, Tensor) else "entries is not a tensor",
            expected=f"a tensor (entries,) of integers, each from 0 to {rows.shape[0] - 1}, on {rows.device}",
            got=short_repr(entries),
            do="for example torch.tensor([0, 2]) for rows 0 and 2, counted from 0",
        ) from error


def read_tokens(
    key: Tensor, value: Tensor, inputs: Mapping[str, Tensor] | None, cache_format: str | None
) -> dict[str, Tensor]:
    """Return the tensors of new tokens by name, in the format of a cache.

    Raises ShapeError if key and value do not fit each other, RefusedError for tokens to be rounded that require grad.
    """
    check_tokens("key", key, "(batch, key_heads, new, head_dim)")
    check_tokens("value", value, "(batch, key_heads, new, value_dim)")
    _check_pair(key, value)
    others = {} if inputs is None else inputs
    if cache_format is None:
        return {"key": key, "value": value, **others}
    if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
        raise RefusedError(
            "rounded keys and values have no gradients",
            expected="tokens that need no gradient",
            got=f"a key or value that requires grad, and a cache of {cache_format}",
            do="decode under torch.no_grad(), or learn with a cache that rounds nothing",
        )
    return {"key": round_rows(key), "value": round_rows(value), **others}


def check_dtype_of_tokens(key: Tensor, storage: Storage) -> None:
    """Raise ShapeError if earlier keys were rounded from another dtype than that of the new ones."""
    if storage.tensors["key"].dtype is torch.int8 and key.dtype != storage.dtype:
        raise ShapeError(
            "new tokens do not fit the cache",
            expected=f"tokens in {storage.dtype}, as the earlier ones",
            got=str(key.dtype),
            do="start from KeyValueCache.empty() for another dtype",
        )


def check_new_tokens(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    """Raise ShapeError unless new tokens have the inputs, sizes, dtypes and devices of the earlier ones."""
    _check_names(old, new)
    for name in old:
        _check_fits(old[name], new[name])


def copy_with_room(tensor: Tensor, capacity: int) -> Tensor:
    """Copy keys or values to the beginning of a tensor with space for ``capacity`` tokens."""
    room = new_empty(tensor, *tensor.shape[:2], capacity, tensor.shape[3])
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


def _check_names(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    if old.keys() != new.keys():
        raise ShapeError(
            "new tokens do not fit the cache",
            expected=f"the inputs of the earlier tokens: {', '.join(old)}",
            got=", ".join(new),
            do="pass the same extra inputs at every step, or start from KeyValueCache.empty()",
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

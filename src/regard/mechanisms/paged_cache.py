"""Keys and values of sequences of different lengths, in pages of a pool. Kwon et al. 2023 (PagedAttention), section 4.

    pool = PagePool(key_heads, head_dim)
    cache = PagedCache.empty(pool, batch=3).extended(key, value, lengths=[5, 2, 7])     # prompts
    cache = cache.extended(new_key, new_value)                                          # one more token each
    output = cache.attention(query, mask=causal())

Token j of a sequence is stored in row j % page_size of its page number j // page_size. A sequence takes no more memory
than its length needs, rounded up to whole pages.

``MultiHeadAttention`` accepts it as ``cache=`` with any mechanism that caches keys and values; the dot product then
reads the pages in place.

Like ``KeyValueCache``, a paged cache is immutable: ``extended``, ``reordered`` and ``joined`` return a new one, which
shares pages with the old one. When two branches of a sequence diverge, only the page in which they diverge is copied. A
page returns to the pool when the last cache that holds it is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import (
    LARGEST_SIZE,
    DeviceError,
    DtypeError,
    OptionError,
    RefusedError,
    ShapeError,
    check_choice,
    check_count,
    check_kind,
    short_repr,
)
from regard.exact_attention import attention
from regard.fields import repr_of_fields
from regard.kernels.implementations.paged import PagedRequest, gather_sequence
from regard.kernels.operators.paged_attention_op import PagedKeysValues
from regard.kernels.request import Terms
from regard.kernels.select import impl_names, select
from regard.masks.base import Mask
from regard.mechanisms.key_value_cache import TokenCache
from regard.mechanisms.page_pool import Page, PagePool
from regard.mechanisms.state import State, StateBytes
from regard.tensors import check_tensor, is_dense
from regard.validation import check_mask, check_terms


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class PagedCache(State):
    """Keys and values of a batch of sequences of ``lengths`` tokens; ``length`` is the longest."""

    __repr__ = repr_of_fields

    pool: PagePool
    lengths: tuple[int, ...]
    _pages: tuple[tuple[Page, ...], ...] = field(repr=False)
    _page_table: Int[Tensor, "batch most_pages"] = field(repr=False)  # the pages' numbers
    length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", max(self.lengths, default=0))

    @classmethod
    def empty(cls, pool: PagePool, batch: int) -> PagedCache:
        """Create a cache of ``batch`` empty sequences. Raises OptionError for an invalid pool or count."""
        if not isinstance(pool, PagePool):
            raise OptionError(
                "pool is not a PagePool",
                expected="a PagePool",
                got=type(pool).__name__,
                do="make one with PagePool(key_heads, head_dim)",
            )
        check_count("batch", batch, minimum=0, maximum=LARGEST_SIZE)
        return cls(pool, (0,) * batch, ((),) * batch, torch.empty(batch, 0, dtype=torch.int32))

    @property
    def batch(self) -> int:
        """Number of sequences in the batch."""
        return len(self.lengths)

    @property
    def next_positions(self) -> tuple[int, ...]:
        """Position of the next token of each sequence: its length."""
        return self.lengths

    @property
    def bytes(self) -> StateBytes:
        """The memory of one sequence, without the free part of its last page."""
        return StateBytes(self.pool.bytes_per_token)

    def extended(self, key: Tensor, value: Tensor, lengths: Sequence[int] | Tensor | None = None) -> PagedCache:
        """Return a cache with more tokens at the end of each sequence.

        Args:
            key: (batch, key_heads, new, head_dim), in the pool's dtype and on its device.
            value: (batch, key_heads, new, value_dim).
            lengths: number of valid tokens per sequence, the first of the ``new`` ones; None: all.

        Raises ShapeError, DtypeError or DeviceError if the tokens do not fit the pool, OptionError for invalid
        ``lengths``, RefusedError if the pool is full or a token requires grad.
        """
        self._check_tokens(key, value)
        added = _parse_lengths(lengths, self.batch, key.shape[2])
        # Without the lock another thread could write to the same last page, or move the pool's memory meanwhile.
        with torch.no_grad(), self.pool.lock:
            room = self._reserve_pages(added)
            room._write(key, value, self.lengths)
        return room

    def reordered(self, entries: Sequence[int] | Int[Tensor, " entries"]) -> PagedCache:
        """Return a cache of the given sequences, in that order, without copying: for beam search.

        Raises OptionError for an index out of range.
        """
        chosen = self._check_entries(entries)
        lengths = tuple(self.lengths[entry] for entry in chosen)
        pages = tuple(self._pages[entry] for entry in chosen)
        return PagedCache(self.pool, lengths, pages, self._page_table[torch.tensor(chosen, dtype=torch.long)])

    def joined(self, other: PagedCache) -> PagedCache:
        """Return a cache of this one's sequences followed by the other's, without copying. Both must share a pool.

        Raises OptionError if they do not.
        """
        check_kind("other", other, PagedCache, do="make both caches from one PagePool")
        if self.pool is not other.pool:
            raise OptionError(
                "the caches are in different pools",
                expected="two caches made from one PagePool",
                got=f"{self.pool!r} and {other.pool!r}",
                do="extend a cache of this pool with the other's tokens",
            )
        columns = max(self._page_table.shape[1], other._page_table.shape[1])
        table = torch.cat([_pad_page_table(cache._page_table, columns) for cache in (self, other)])
        return PagedCache(self.pool, self.lengths + other.lengths, self._pages + other._pages, table)

    def tokens(self, entry: int) -> tuple[Tensor, Tensor]:
        """Return keys (1, key_heads, length, head_dim) and values of one sequence, as copies.

        Raises OptionError for an index out of range.
        """
        self._check_entries([entry])
        numbers, length = self._page_table[entry], self.lengths[entry]
        key, value = (
            gather_sequence(side, numbers, length, self.pool.dtype) for side in (self.pool.key, self.pool.value)
        )
        return key, value

    @explain_arguments
    def attention(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        *,
        mask: Mask | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        impl: str = "auto",
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute attention from ``query`` to the sequences; the last query is at the last token of its sequence.

        Args:
            query: (batch, heads, queries, head_dim); heads is a multiple of the pool's key_heads.
            mask: a mask over one sequence; with more than one query usually ``causal()``.
            scale: factor of the scores; None: 1/sqrt(head_dim).
            softcap, sinks: as in ``regard.attention``.
            impl: as in ``regard.attention``. "native" reads the pages in place, for masks that are a band (``causal``,
                ``window``); all others gather each sequence. "auto" is "native" if that is possible.

        Returns (batch, heads, queries, value_dim). Raises as ``regard.attention`` does.
        """
        self._check_query(query)
        check_mask(mask)
        terms = check_terms(query, mask, scale=scale, softcap=softcap, sinks=sinks)
        check_choice("impl", impl, ("auto", *impl_names("attention")))
        return attend_to_pages(
            query, self._make_paged(), terms, impl, lambda: self._attend_gathered(query, terms, impl)
        )

    def _attend_gathered(self, query: Tensor, terms: Terms, impl: str) -> Tensor:
        """Compute attention to copies of one sequence after the other."""
        if self.batch == 0:
            return query.new_zeros(*query.shape[:3], self.pool.value.shape[3])
        sinks = [None] * self.batch if terms.sinks is None else terms.sinks.expand(self.batch, -1, -1, -1).split(1)
        outputs = []
        for entry, (own, sink) in enumerate(zip(query.split(1), sinks, strict=True)):
            key, value = self.tokens(entry)
            outputs.append(attention(own, key, value, **terms._replace(sinks=sink)._asdict(), impl=impl))
        return torch.cat(outputs)

    def _check_entries(self, entries: object) -> list[int]:
        """Parse indices of sequences. Raises OptionError for one out of range."""
        chosen = _to_integers(entries)
        if chosen is None or not all(-self.batch <= entry < self.batch for entry in chosen):
            raise OptionError(
                "index of a sequence out of range",
                expected=f"integers from {-self.batch} to {self.batch - 1}",
                got=short_repr(entries),
                do="count sequences from 0",
            )
        return chosen

    def _make_paged(self) -> PagedKeysValues:
        return PagedKeysValues(
            self.pool.key, self.pool.value, self._page_table, torch.tensor(self.lengths, dtype=torch.long)
        )

    def _reserve_pages(self, added: list[int]) -> PagedCache:
        """Return a cache with pages for new tokens. A last page that another branch has extended is copied."""
        size, pages = self.pool.page_size, list(self._pages)
        lengths = tuple(map(sum, zip(self.lengths, added, strict=True)))
        parted: dict[int, Page] = {}
        going_on: set[Page] = set()  # last pages that one sequence, and no other, writes on
        for entry, length in enumerate(self.lengths):
            if not added[entry] or length % size == 0:
                continue
            last = pages[entry][-1]
            if last.num_written != length % size or last in going_on:
                parted[entry] = last
            going_on.add(last)
        kept = [len(pages[entry]) - (entry in parted) for entry in range(self.batch)]
        missing = [max(-(-length // size) - have, 0) for length, have in zip(lengths, kept, strict=True)]
        fresh = self.pool.take(sum(missing))
        for entry in (entry for entry, count in enumerate(missing) if count):
            new = tuple(fresh.pop() for _ in range(missing[entry]))
            pages[entry] = pages[entry][: kept[entry]] + new
            if entry in parted:
                self.pool.copy(parted[entry], new[0], self.lengths[entry] % size)
        if not any(missing):
            return PagedCache(self.pool, lengths, self._pages, self._page_table)
        places = [(entry, kept[entry] + number) for entry in range(self.batch) for number in range(missing[entry])]
        table = _pad_page_table(self._page_table, max(map(len, pages))).clone()
        rows, columns = torch.tensor(places).T
        numbers = [pages[entry][column].index for entry, column in places]
        table[rows, columns] = torch.tensor(numbers, dtype=torch.int32)
        return PagedCache(self.pool, lengths, tuple(pages), table)

    def _write(self, key: Tensor, value: Tensor, before: tuple[int, ...]) -> None:
        """Write the valid tokens into the pages, behind the ``before`` tokens that are there."""
        size = self.pool.page_size
        for pages, length, known in zip(self._pages, self.lengths, before, strict=True):
            if length == known:
                continue  # another branch may have written on in its last page
            for number in range(known // size, -(-length // size)):
                pages[number].num_written = min(length - number * size, size)
        position = torch.arange(key.shape[2]) + torch.tensor(before, dtype=torch.long)[:, None]
        own = position < torch.tensor(self.lengths, dtype=torch.long)[:, None]
        entry, position = own.nonzero()[:, 0], position[own]
        page = self._page_table[entry, position // size].long()
        own, page, row = (index.to(self.pool.key.device) for index in (own, page, position % size))
        self.pool.key[page, :, row] = self.pool.to_stored(key.transpose(1, 2)[own])
        self.pool.value[page, :, row] = self.pool.to_stored(value.transpose(1, 2)[own])

    def _check_tokens(self, key: Tensor, value: Tensor) -> None:
        """Raise ShapeError, DtypeError, DeviceError or RefusedError unless new tokens fit the pool."""
        heads = self.pool.key.shape[1]
        for name, tensor, size in (("key", key, self.pool.head_dim), ("value", value, self.pool.value_dim)):
            shape = f"({self.batch}, {heads}, new, {size})"
            _check_dtype_and_device(name, tensor, self.pool)
            if tensor.dim() != 4 or tensor.shape != (self.batch, heads, key.shape[2], size):
                raise ShapeError(
                    f"{name} does not fit the paged cache",
                    expected=f"{shape}, as many new tokens in key and value",
                    got=f"key {tuple(key.shape)}, value {tuple(value.shape)}",
                    do="make the pool with the sizes of the layer, and the cache with the batch of the tokens",
                )
            if torch.is_grad_enabled() and tensor.requires_grad:
                raise RefusedError(
                    "a paged cache does not pass gradients on to its tokens",
                    expected="tokens that need no gradient",
                    got=f"a {name} that requires grad",
                    do="decode under torch.no_grad(), or learn with KeyValueCache",
                )

    def _check_query(self, query: Tensor) -> None:
        """Raise ShapeError, DtypeError or DeviceError unless a query fits the pool."""
        key_heads, size = self.pool.key.shape[1], self.pool.head_dim
        _check_dtype_and_device("query", query, self.pool)
        if (
            query.dim() != 4
            or (query.shape[0], query.shape[3]) != (self.batch, size)
            or query.shape[1] == 0
            or query.shape[1] % key_heads
        ):
            raise ShapeError(
                "query does not fit the paged cache",
                expected=f"({self.batch}, heads, queries, {size}), heads a multiple of {key_heads}",
                got=str(tuple(query.shape)),
                do="ask with one row of queries for each sequence of the cache",
            )


def _check_dtype_and_device(name: str, tensor: Tensor, pool: PagePool) -> None:
    check_tensor(name, tensor, "a torch.Tensor")
    if tensor.dtype != pool.dtype:
        raise DtypeError(
            f"{name} and the pool have different dtypes",
            expected=str(pool.dtype),
            got=str(tensor.dtype),
            do=f"make the pool with dtype={tensor.dtype}, or convert with .to({pool.dtype})",
        )
    if tensor.device != pool.key.device:
        raise DeviceError(
            f"{name} and the pool are on different devices",
            expected=str(pool.key.device),
            got=str(tensor.device),
            do="move it there with .to(...), or make the pool with device=...",
        )


def _parse_lengths(lengths: Sequence[int] | Tensor | None, batch: int, new: int) -> list[int]:
    """Parse the number of valid new tokens of each sequence."""
    if lengths is None:
        return [new] * batch
    counts = _to_integers(lengths)
    if counts is None or len(counts) != batch or not all(0 <= count <= new for count in counts):
        raise OptionError(
            "wrong lengths: they count the valid new tokens of each sequence",
            expected=f"{batch} integers from 0 to {new}",
            got=short_repr(lengths),
            do="leave lengths out if all new tokens are valid",
        )
    return counts


def _to_integers(numbers: object) -> list[int] | None:
    """Return the integers of a list or of a one-dimensional tensor; None for anything else."""
    if isinstance(numbers, Tensor) and (not is_dense(numbers) or numbers.is_meta):
        return None
    listed = numbers.tolist() if isinstance(numbers, Tensor) else numbers
    if not isinstance(listed, Sequence) or any(
        isinstance(number, bool) or not isinstance(number, Integral) for number in listed
    ):
        return None
    return [int(number) for number in listed]


def _pad_page_table(table: Tensor, columns: int) -> Tensor:
    """Return the table with room for ``columns`` pages per sequence; the padding is never read."""
    return torch.nn.functional.pad(table, (0, columns - table.shape[1]))


def pages_of_cache(cache: TokenCache) -> PagedKeysValues:
    """Return the stored keys and values of a cache as pages: one for each entry of the batch."""
    key, value = cache.stored
    batch, keys = key.shape[0], key.shape[2]
    return PagedKeysValues(key, value, torch.arange(batch)[:, None], torch.full((batch,), keys))


def attend_to_pages(
    query: Float[Tensor, "batch heads queries head_dim"],
    pages: PagedKeysValues,
    terms: Terms,
    impl: str,
    attend_gathered: Callable[[], Tensor],
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention to keys and values in pages; "auto" and "native" read them in place, if that is possible."""
    request = PagedRequest(query, pages, terms, attend_gathered)
    chosen = select("paged attention", impl if impl in ("auto", "native") else "gathered", request)
    output: Tensor = chosen.compute(request)
    return output

"""Keys and values of sequences of different lengths, in pages of a pool. Kwon et al. 2023 (PagedAttention), section 4.

    pool = PagePool(key_heads, head_dim)
    cache = PagedCache.empty(pool, batch=3).extended(key, value, lengths=[5, 2, 7])     # prompts
    cache = cache.extended(new_key, new_value)                                          # one more token each
    output = cache.attention(query, mask=causal())

Token j of a sequence lies in row j % page_size of its page number j // page_size. A sequence holds no more memory than
its own length needs, one page's remainder apart.

``MultiHeadAttention`` takes it as ``cache=``, with any mechanism that carries keys and values; the dot product then
reads the pages where they lie.

As ``KeyValueCache`` does, a paged cache never changes: ``extended``, ``reordered`` and ``joined`` give a new one, which
shares pages with those before it. Where two branches of a sequence go different ways, the page they part in is
copied, and no other. A page goes back to the pool when the last cache that holds it is gone: drop a cache to free it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.attention import attention
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
from regard.kernels.implementations.paged import PagedRequest, gather_sequence
from regard.kernels.operators.paged_attention_op import PagedKeysValues
from regard.kernels.select import impl_names, select
from regard.masks.base import Mask
from regard.mechanisms.page_pool import Page, PagePool
from regard.mechanisms.state import State
from regard.tensors import check_tensor, is_dense
from regard.validation import check_mask, check_scale


@final
@dataclass(frozen=True, eq=False)
class PagedCache(State):
    """Keys and values of ``lengths`` tokens of each sequence of a batch; ``length`` is that of the longest."""

    pool: PagePool
    lengths: tuple[int, ...]
    _pages: tuple[tuple[Page, ...], ...] = field(repr=False)
    _page_table: Int[Tensor, "batch most_pages"] = field(repr=False)  # the pages' numbers
    length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", max(self.lengths, default=0))

    @classmethod
    def empty(cls, pool: PagePool, batch: int) -> PagedCache:
        """A cache of ``batch`` sequences of no tokens. Raises OptionError for what is no pool or no count."""
        if not isinstance(pool, PagePool):
            raise OptionError(
                "pool is no pool of pages",
                expected="a PagePool",
                got=type(pool).__name__,
                do="make one with PagePool(key_heads, head_dim)",
            )
        check_count("batch", batch, least=0, most=LARGEST_SIZE)
        return cls(pool, (0,) * batch, ((),) * batch, torch.empty(batch, 0, dtype=torch.int32))

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return len(self.lengths)

    @property
    def next_positions(self) -> tuple[int, ...]:
        """The length of each sequence."""
        return self.lengths

    def extended(self, key: Tensor, value: Tensor, lengths: Sequence[int] | Tensor | None = None) -> PagedCache:
        """A cache with more tokens at the end of each sequence.

        Args:
            key: (batch, key_heads, new, head_dim), in the pool's dtype and on its device.
            value: (batch, key_heads, new, value_dim).
            lengths: how many of the ``new`` tokens are a sequence's own, the first ones; None is all of them.

        Raises ShapeError, DtypeError, DeviceError where they do not fit the pool, OptionError for ``lengths`` that are
        not there, RefusedError where the pool is full or gradients are asked for.
        """
        self._check_tokens(key, value)
        added = _parse_lengths(lengths, self.batch, key.shape[2])
        # No other thread finds the same last page unwritten, or moves the pool's memory, before the tokens are there.
        with torch.no_grad(), self.pool.lock:
            room = self._reserve_pages(added)
            room._write(key, value, self.lengths)
        return room

    def reordered(self, entries: Sequence[int] | Int[Tensor, " entries"]) -> PagedCache:
        """A cache of the given sequences, in that order, copying nothing: what beam search keeps.

        Raises OptionError for a sequence that is not there.
        """
        chosen = self._check_entries(entries)
        lengths = tuple(self.lengths[entry] for entry in chosen)
        pages = tuple(self._pages[entry] for entry in chosen)
        return PagedCache(self.pool, lengths, pages, self._page_table[torch.tensor(chosen, dtype=torch.long)])

    def joined(self, other: PagedCache) -> PagedCache:
        """A cache of this one's sequences and then the other's, copying nothing. Both must share a pool.

        Raises OptionError where they do not.
        """
        check_kind("other", other, PagedCache, do="make both caches from one PagePool")
        if self.pool is not other.pool:
            raise OptionError(
                "the caches lie in different pools",
                expected="two caches made from one PagePool",
                got=f"{self.pool!r} and {other.pool!r}",
                do="extend a cache of this pool with the other's tokens",
            )
        columns = max(self._page_table.shape[1], other._page_table.shape[1])
        table = torch.cat([_pad_page_table(cache._page_table, columns) for cache in (self, other)])
        return PagedCache(self.pool, self.lengths + other.lengths, self._pages + other._pages, table)

    def tokens(self, entry: int) -> tuple[Tensor, Tensor]:
        """Keys (1, key_heads, length, head_dim) and values of one sequence, as copies.

        Raises OptionError for a sequence that is not there.
        """
        self._check_entries([entry])
        numbers, length = self._page_table[entry], self.lengths[entry]
        return gather_sequence(self.pool.key, numbers, length), gather_sequence(self.pool.value, numbers, length)

    @explain_arguments
    def attention(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        *,
        mask: Mask | None = None,
        scale: float | None = None,
        impl: str = "auto",
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Attention from ``query`` to the sequences. The queries stand at the end of each: the last on its last token.

        Args:
            query: (batch, heads, queries, head_dim); heads is a multiple of the pool's key_heads.
            mask: who may attend to whom, over one sequence: ``causal()`` where there is more than one query.
            scale: what scores are multiplied with; None is 1/sqrt(head_dim).
            impl: as in ``regard.attention``. "native" reads the pages where they lie, for masks that are a band
                (``causal``, ``window``); any other gathers each sequence. "auto" is "native" where that is possible.

        Returns (batch, heads, queries, value_dim). Raises as ``regard.attention`` does.
        """
        self._check_query(query)
        check_mask(mask)
        check_scale(scale)
        check_choice("impl", impl, ("auto", *impl_names("attention")))
        request = PagedRequest(
            query,
            self._make_paged(),
            mask,
            scale=query.shape[3] ** -0.5 if scale is None else float(scale),
            attend=partial(attention, mask=mask, scale=scale, impl=impl),
        )
        output: Tensor = select("paged attention", impl if impl in ("auto", "native") else "gathered", request).compute(
            request
        )
        return output

    def _check_entries(self, entries: object) -> list[int]:
        """Sequences by their number. Raise OptionError for one that is not there."""
        chosen = _to_integers(entries)
        if chosen is None or not all(-self.batch <= entry < self.batch for entry in chosen):
            raise OptionError(
                "there are no such sequences",
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
        """A cache with pages for the tokens to come. A last page that another branch writes on is copied."""
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
        wanted = [max(-(-length // size) - have, 0) for length, have in zip(lengths, kept, strict=True)]
        taken = self.pool.take(sum(wanted))
        for entry in (entry for entry, count in enumerate(wanted) if count):
            new = tuple(taken.pop() for _ in range(wanted[entry]))
            pages[entry] = pages[entry][: kept[entry]] + new
            if entry in parted:
                self.pool.copy(parted[entry], new[0], self.lengths[entry] % size)
        if not any(wanted):
            return PagedCache(self.pool, lengths, self._pages, self._page_table)
        places = [(entry, kept[entry] + number) for entry in range(self.batch) for number in range(wanted[entry])]
        table = _pad_page_table(self._page_table, max(map(len, pages))).clone()
        rows, columns = torch.tensor(places).T
        numbers = [pages[entry][column].index for entry, column in places]
        table[rows, columns] = torch.tensor(numbers, dtype=torch.int32)
        return PagedCache(self.pool, lengths, tuple(pages), table)

    def _write(self, key: Tensor, value: Tensor, before: tuple[int, ...]) -> None:
        """Put the first of the tokens into the pages, after those of ``before``."""
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
        self.pool.key[page, :, row] = key.transpose(1, 2)[own]
        self.pool.value[page, :, row] = value.transpose(1, 2)[own]

    def _check_tokens(self, key: Tensor, value: Tensor) -> None:
        """Raise unless new tokens fit the pool."""
        for name, tensor, pages in (("key", key, self.pool.key), ("value", value, self.pool.value)):
            wanted = f"({self.batch}, {pages.shape[1]}, new, {pages.shape[3]})"
            _check_dtype_and_device(name, tensor, pages)
            if tensor.dim() != 4 or tensor.shape != (self.batch, pages.shape[1], key.shape[2], pages.shape[3]):
                raise ShapeError(
                    f"{name} does not fit the paged cache",
                    expected=f"{wanted}, as many new tokens in key and value",
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
        """Raise unless a query fits the pool."""
        pages = self.pool.key
        _check_dtype_and_device("query", query, pages)
        if (
            query.dim() != 4
            or (query.shape[0], query.shape[3]) != (self.batch, pages.shape[3])
            or query.shape[1] == 0
            or query.shape[1] % pages.shape[1]
        ):
            raise ShapeError(
                "query does not fit the paged cache",
                expected=f"({self.batch}, heads, queries, {pages.shape[3]}), heads a multiple of {pages.shape[1]}",
                got=str(tuple(query.shape)),
                do="ask with one row of queries for each sequence of the cache",
            )


def _check_dtype_and_device(name: str, tensor: Tensor, pages: Tensor) -> None:
    check_tensor(name, tensor, "a torch.Tensor")
    if tensor.dtype != pages.dtype:
        raise DtypeError(
            f"{name} and the pool have different dtypes",
            expected=str(pages.dtype),
            got=str(tensor.dtype),
            do=f"make the pool with dtype={tensor.dtype}, or convert with .to({pages.dtype})",
        )
    if tensor.device != pages.device:
        raise DeviceError(
            f"{name} and the pool are on different devices",
            expected=str(pages.device),
            got=str(tensor.device),
            do="move it there with .to(...), or make the pool with device=...",
        )


def _parse_lengths(lengths: Sequence[int] | Tensor | None, batch: int, new: int) -> list[int]:
    """How many new tokens each sequence has."""
    if lengths is None:
        return [new] * batch
    counts = _to_integers(lengths)
    if counts is None or len(counts) != batch or not all(0 <= count <= new for count in counts):
        raise OptionError(
            "lengths says how many of the new tokens are a sequence's own",
            expected=f"{batch} integers from 0 to {new}",
            got=short_repr(lengths),
            do="leave it out where all are",
        )
    return counts


def _to_integers(numbers: object) -> list[int] | None:
    """The integers of a list, or of a tensor of one dimension; None where it is none."""
    if isinstance(numbers, Tensor) and (not is_dense(numbers) or numbers.is_meta):
        return None
    listed = numbers.tolist() if isinstance(numbers, Tensor) else numbers
    if not isinstance(listed, Sequence) or any(
        isinstance(number, bool) or not isinstance(number, Integral) for number in listed
    ):
        return None
    return [int(number) for number in listed]


def _pad_page_table(table: Tensor, columns: int) -> Tensor:
    """The table with room for as many pages a sequence; what is named there is never read."""
    return torch.nn.functional.pad(table, (0, columns - table.shape[1]))

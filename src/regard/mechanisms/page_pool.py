"""Page pool: paged memory for the keys and values of many sequences. Kwon et al. 2023 (PagedAttention), section 4.2.

    key      (pages, key_heads, page_size, head_dim)
    value    (pages, key_heads, page_size, value_dim)

A page is free until a cache takes it, and returns to the pool when no cache refers to it any more.

Threads may share a pool. Taking pages and writing tokens need its ``lock``: a pool that grows copies its tokens, and a
token that is written during the copy would be lost. Reading and releasing pages need no lock.
"""

from __future__ import annotations

from threading import RLock
from typing import Any, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from regard.arguments import explain_arguments
from regard.devices import resolve_device
from regard.errors import (
    DtypeError,
    RefusedError,
    check_count,
    check_size,
    check_sizes,
    check_weights,
    first_line,
    short_repr,
)
from regard.huge_pages import new_empty
from regard.kernels.int8_rows import check_cache_format, round_rows, stored_width
from regard.validation import FLOATS


@final
@explain_arguments
class PagePool:
    """Memory for pages of ``page_size`` tokens, which starts empty and doubles when all pages are taken.

    Args:
        key_heads: number of heads of keys and values.
        head_dim: size of a key in a head.
        value_dim: size of a value in a head; None is ``head_dim``.
        page_size: tokens per page.
        limit: maximum number of pages; None is unlimited.
        dtype: dtype of keys and values.
        cache_format: "int8" rounds them (``kernels.int8_rows``); None stores them in ``dtype``.
        device: device of keys and values; None is the CPU.

    Raises OptionError for invalid sizes, DtypeError for a dtype that attention does not support, DeviceError for an
    unavailable device.
    """

    def __init__(
        self,
        key_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        page_size: int = 64,
        limit: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        cache_format: str | None = None,
    ) -> None:
        value_dim = head_dim if value_dim is None else value_dim
        check_sizes(key_heads=key_heads, head_dim=head_dim, value_dim=value_dim, page_size=page_size)
        if limit is not None:
            check_size("limit", limit)
        check_weights(key_heads=key_heads, page_size=page_size, head_dim=max(head_dim, value_dim))
        if not isinstance(dtype, torch.dtype) or dtype not in FLOATS:
            raise DtypeError(
                "attention needs floating-point tensors",
                expected=", ".join(str(known) for known in FLOATS),
                got=short_repr(dtype),
                do="make the pool with the dtype of the layer",
            )
        device = resolve_device(device)
        self.page_size, self.limit, self.dtype = page_size, limit, dtype
        self.head_dim, self.value_dim, self.cache_format = head_dim, value_dim, check_cache_format(cache_format)
        stored = dtype if cache_format is None else torch.int8
        with torch.inference_mode(False):
            self.key, self.value = (
                torch.empty(0, key_heads, page_size, stored_width(size, stored), dtype=stored, device=device)
                for size in (head_dim, value_dim)
            )
        self._free_indices: list[int] = []
        self.lock = RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle without the lock; a copy makes its own."""
        return {name: part for name, part in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lock=RLock())

    def __repr__(self) -> str:
        limit = "" if self.limit is None else f", limit={self.limit}"
        return f"PagePool({self.pages} pages of {self.page_size} tokens, {self.free} free{limit})"

    @property
    def pages(self) -> int:
        """Number of pages in memory, free or taken."""
        return self.key.shape[0]

    @property
    def free(self) -> int:
        """Number of pages that no cache holds."""
        return len(self._free_indices)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of a token."""
        return sum(side.element_size() * side.shape[1] * side.shape[3] for side in (self.key, self.value))

    def take(self, count: int) -> list[Page]:
        """Take ``count`` free pages. Raises RefusedError beyond ``limit``, or if memory runs out."""
        check_count("count", count, minimum=0)
        with self.lock:
            if count > self.free:  # other threads can only increase ``free`` meanwhile
                self._grow(self.pages + count - self.free)
            return [Page(self, self._free_indices.pop()) for _ in range(count)]

    def release(self, index: int) -> None:
        """Return a page to the pool. Called from ``Page.__del__``, at any point of any thread, so it takes no lock."""
        self._free_indices.append(index)

    def to_stored(self, tokens: Float[Tensor, "*leading size"]) -> Shaped[Tensor, "*leading stored_size"]:
        """Return keys or values in the format in which pages store them."""
        return tokens if self.cache_format is None else round_rows(tokens)

    def copy(self, source: Page, target: Page, tokens: int) -> None:
        """Copy the first ``tokens`` tokens of a page to another."""
        with self.lock:
            self.key[target.index, :, :tokens] = self.key[source.index, :, :tokens]
            self.value[target.index, :, :tokens] = self.value[source.index, :, :tokens]

    def _grow(self, required: int) -> None:
        """Grow to at least ``required`` pages."""
        if self.limit is not None and required > self.limit:
            raise RefusedError(
                "the pool of pages is full",
                expected=f"at most {self.limit} pages of {self.page_size} tokens in use",
                got=f"{required} needed",
                do="delete caches that are no longer needed, or make the pool with a larger limit",
            )
        before = self.pages
        pages = max(16, 2 * before, required)
        pages = pages if self.limit is None else min(pages, self.limit)
        with torch.inference_mode(False):
            key, value = self._allocate(self.key, pages), self._allocate(self.value, pages)
            key[:before], value[:before] = self.key, self.value
        self.key, self.value = key, value
        self._free_indices.extend(range(pages - 1, before - 1, -1))

    def _allocate(self, side: torch.Tensor, pages: int) -> torch.Tensor:
        """Allocate memory for ``pages`` pages of keys or values."""
        try:
            return new_empty(side, pages, *side.shape[1:])
        except (RuntimeError, TypeError) as error:  # RuntimeError: out of memory; TypeError: sizes beyond 64 bits
            raise RefusedError(
                "there is not enough memory for so many pages",
                expected=f"{pages} pages of {self.page_size} tokens in memory",
                got=first_line(error, 80),
                do="delete caches that are no longer needed, and set limit= when making the pool",
            ) from error


@final
class Page:
    """One page of a pool, held by the caches that refer to it; ``num_written`` tokens of it are written."""

    __slots__ = ("index", "num_written", "pool")

    def __init__(self, pool: PagePool, index: int) -> None:
        self.pool, self.index, self.num_written = pool, index, 0

    def __del__(self) -> None:
        self.pool.release(self.index)

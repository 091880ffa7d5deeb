"""One step of a model over sequences of different lengths, each with any number of new tokens, in pages of one pool.

    new tokens    [ of sequence 1 | of sequence 2 | .. ]          one behind the other, without padding: a batch of one
    page          (layers * key_heads, page_size, head_dim)       page_size tokens of one sequence, in all layers

Kwon et al. 2023 (PagedAttention), sections 4.1 to 4.4; tokens of all sequences behind one another: Yu et al. 2022
(Orca), section 3.2, "selective batching". A ``PagedSequence`` has the pages of one text, which others may share. A
``RaggedStep`` finds the places of the new tokens once, and gives each layer its ``RaggedPages``, a state in which the
layer decodes like in any other. New keys and values of all sequences are written before any is read, so a sequence may
share pages that another one fills in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import RefusedError
from regard.exact_attention import attention
from regard.kernels.implementations.paged import PagedRequest, gather_sequence
from regard.kernels.operators.paged_attention_op import PagedKeysValues
from regard.kernels.select import select
from regard.masks.base import Mask
from regard.mechanisms.page_pool import Page, PagePool
from regard.mechanisms.state import State

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of one sequence: (query, key, value), each a batch of one, the queries at the end of the keys."""


@final
class PagedSequence:
    """The pages of a text of ``length`` tokens. ``extend`` takes room; a ``RaggedStep`` fills it."""

    __slots__ = ("_indices", "length", "pages", "pool")

    def __init__(self, pool: PagePool, pages: Sequence[Page] = (), length: int = 0) -> None:
        self.pool, self.pages, self.length = pool, list(pages), length
        self._indices = [page.index for page in self.pages]

    @property
    def indices(self) -> list[int]:
        """The numbers of the pages in the pool."""
        return self._indices

    def extend(self, count: int) -> None:
        """Take room for ``count`` more tokens. A last page on which another sequence went on is copied.

        Raises RefusedError if the pool is full.
        """
        if count == 0:
            return
        size, used = self.pool.page_size, self.length % self.pool.page_size
        is_parted = used > 0 and self.pages[-1].num_written != used
        length = self.length + count
        taken = self.pool.take(-(-length // size) - len(self.pages) + is_parted)
        if is_parted:
            own = taken.pop()
            self.pool.copy(self.pages[-1], own, used)
            self.pages[-1], self._indices[-1] = own, own.index
        for page in reversed(taken):
            self.pages.append(page)
            self._indices.append(page.index)
        for number in range(self.length // size, len(self.pages)):
            self.pages[number].num_written = min(length - number * size, size)
        self.length = length

    def fork(self) -> PagedSequence:
        """Return a sequence of the same tokens, in the same pages."""
        return PagedSequence(self.pool, self.pages, self.length)


@final
class RaggedStep:
    """New tokens of several sequences: the last ``counts[i]`` tokens of ``sequences[i]``, for which it took room.

    ``positions`` (tokens,) are those of the new tokens in their texts, and ``last`` (sequences,) the places of the last
    token of each sequence among all new tokens. ``layers`` is the number of layers that share the pool.
    """

    def __init__(
        self, pool: PagePool, sequences: Sequence[PagedSequence], counts: Sequence[int], *, layers: int
    ) -> None:
        self.sequences, self.counts = list(sequences), list(counts)
        table = np.zeros((len(sequences), max((len(one.indices) for one in sequences), default=0)), dtype=np.int32)
        for row, sequence in zip(table, sequences, strict=True):
            row[: len(sequence.indices)] = sequence.indices
        number, lengths = np.array(counts, dtype=np.int64), np.array([one.length for one in sequences], dtype=np.int64)
        ends = number.cumsum()
        owner = np.repeat(np.arange(len(counts)), number)
        place = np.arange(len(owner)) - (ends - lengths)[owner]  # the position in the text
        self.positions, self.last = torch.from_numpy(place), torch.from_numpy(ends - 1)
        self.page = torch.from_numpy(table[owner, place // pool.page_size].astype(np.int64))
        self.row = torch.from_numpy(place % pool.page_size)
        self.table, self.lengths = torch.from_numpy(table), torch.from_numpy(lengths)
        self.starts = (ends - number).tolist()
        self.single = torch.from_numpy(np.flatnonzero(number == 1))
        self.several = np.flatnonzero(number > 1).tolist()
        self._key, self._value = (pages.unflatten(1, (layers, -1)).unbind(1) for pages in (pool.key, pool.value))

    def layer(self, number: int) -> RaggedPages:
        """Make the state of the layer with this number, counted from 0."""
        return RaggedPages(self, self._key[number], self._value[number])


@final
class RaggedPages(State):
    """The state of one layer in a ``RaggedStep``: its part of the pages.

    New keys and values are (1, key_heads, tokens, head_dim), the tokens of all sequences behind one another.
    """

    def __init__(self, step: RaggedStep, key_pages: Tensor, value_pages: Tensor) -> None:
        self.step, self.key_pages, self.value_pages = step, key_pages, value_pages
        self.length = max((one.length for one in step.sequences), default=0)

    @property
    def next_positions(self) -> Int[Tensor, " tokens"]:
        """The position of each new token in its text."""
        return self.step.positions

    def visible_keys(self, new: int) -> int:
        """The number of keys of the longest sequence, which has room for the new tokens."""
        del new
        return self.length

    def reordered(self, entries: Int[Tensor, " batch"]) -> NoReturn:
        """Raise RefusedError: the sequences of a step belong to its caller."""
        del entries
        raise RefusedError(
            "the sequences of a step cannot be reordered",
            expected="another RaggedStep of the sequences to continue",
            got="a step that has begun",
            do="make a RaggedStep with the sequences in the order that you need",
        )

    def write(self, key: Float[Tensor, "1 key_heads tokens head_dim"], value: Tensor) -> None:
        """Write the keys and values of the new tokens into their pages."""
        self.key_pages[self.step.page, :, self.step.row] = key[0].transpose(0, 1)
        self.value_pages[self.step.page, :, self.step.row] = value[0].transpose(0, 1)

    def attention(
        self, query: Float[Tensor, "1 heads tokens head_dim"], *, mask: Mask | None, scale: float, impl: str
    ) -> Float[Tensor, "1 heads tokens value_dim"]:
        """Compute attention of the new tokens, each to its own sequence, by the keys and values written before.

        Single queries read the pages in place, if ``impl`` is "auto" or "native"; several queries of one sequence share
        a copy of its keys and values, which costs little beside their products.
        """
        attend = partial(attention, mask=mask, scale=scale, impl=impl)
        step = self.step
        if not step.several:
            return self._attend_single(query, step.table, step.lengths, mask, scale, impl, attend)
        output = self.attend_each(query, attend, step.several)
        if len(step.single):
            places, rows = step.last[step.single], step.single
            found = self._attend_single(
                query[:, :, places], step.table[rows], step.lengths[rows], mask, scale, impl, attend
            )
            output[:, :, places] = found
        return output

    def attend_each(self, query: Tensor, attend: Attend, sequences: Sequence[int] | None = None) -> Tensor:
        """Compute ``attend`` for one sequence after the other; the output of tokens of others is not written."""
        heads, tokens = query.shape[1], query.shape[2]
        output = query.new_empty(1, tokens, heads, self.value_pages.shape[3]).transpose(1, 2)
        for number in range(len(self.step.sequences)) if sequences is None else sequences:
            start, length = self.step.starts[number], self.step.sequences[number].length
            own, row = slice(start, start + self.step.counts[number]), self.step.table[number]
            key, value = (gather_sequence(pages, row, length) for pages in (self.key_pages, self.value_pages))
            output[:, :, own] = attend(query[:, :, own], key, value)
        return output

    def _attend_single(
        self, query: Tensor, table: Tensor, lengths: Tensor, mask: Mask | None, scale: float, impl: str, attend: Attend
    ) -> Tensor:
        """Attention of one query of each sequence: (1, heads, sequences, head_dim), as if each were an entry."""
        pages = PagedKeysValues(self.key_pages, self.value_pages, table, lengths)
        request = PagedRequest(query.transpose(0, 2), pages, mask, scale=scale, attend=attend)
        chosen = select("paged attention", impl if impl in ("auto", "native") else "gathered", request)
        output: Tensor = chosen.compute(request)
        return output.transpose(0, 2)

"""One step of a model over sequences of different lengths, each with any number of new tokens, in pages of one pool.

    new tokens    [ of sequence 1 | of sequence 2 | .. ]               one behind the other, without padding: a batch
    page          (layers_per_page * key_heads, page_size, head_dim)   page_size tokens of a sequence, in some layers

Kwon et al. 2023 (PagedAttention), sections 4.1 to 4.4; concatenated sequences: Yu et al. 2022
(Orca), section 3.2, "selective batching". A ``PagedSequence`` has the pages of one text, which others may share. A
``RaggedStep`` finds the places of the new tokens once, and gives each layer its ``RaggedPages``, a state in which the
layer decodes like in any other. New keys and values of all sequences are written before any is read, so a sequence may
share pages that another one fills in the same step. Pages behind the windows of all their layers are freed
(``PagedSequence.free_hidden``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import RefusedError
from regard.exact_attention import attention
from regard.kernels.implementations.paged import gather_sequence
from regard.kernels.int8_rows import numbers_in_row
from regard.kernels.operators.paged_attention_op import PagedKeysValues
from regard.masks.base import Mask
from regard.mechanisms.page_layout import PageLayout
from regard.mechanisms.page_pool import Page, PagePool
from regard.mechanisms.paged_cache import attend_to_pages
from regard.mechanisms.state import State, StateBytes
from regard.validation import check_terms

Column: TypeAlias = tuple[Page | None, ...]
"""The pages of the same tokens, one for each group of layers; None where it was freed."""
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of one sequence: (query, key, value), each a batch of one, the queries at the end of the keys."""


@final
class PagedSequence:
    """The pages of a text of ``length`` tokens. ``extend`` takes room; a ``RaggedStep`` fills it.

    ``columns`` are the pages of the same ``page_size`` tokens, one for each group of layers; None where it was freed.
    """

    __slots__ = ("_num_freed", "columns", "layout", "length", "pool", "tables")

    def __init__(self, pool: PagePool, layout: PageLayout, columns: Sequence[Column] = (), length: int = 0) -> None:
        self.pool, self.layout, self.columns, self.length = pool, layout, list(columns), length
        self.tables = [[0 if page is None else page.index for page in pages] for pages in zip(*columns, strict=True)]
        """The numbers of the pages in the pool, of each group; 0 where it was freed."""
        self.tables = self.tables or [[] for _ in layout.windows]
        self._num_freed = [0] * layout.num_groups

    def num_freed(self, group: int) -> int:
        """The number of pages at the beginning that a group of layers does not need any more."""
        return self._num_freed[group]

    def extend(self, count: int) -> None:
        """Take room for ``count`` more tokens. The last pages, if another sequence went on in them, are copied.

        Raises RefusedError if the pool is full.
        """
        if count == 0:
            return
        size, used, groups = self.pool.page_size, self.length % self.pool.page_size, self.layout.num_groups
        is_parted = used > 0 and any(page is not None and page.num_written != used for page in self.columns[-1])
        length = self.length + count
        fresh = self.pool.take(groups * (-(-length // size) - len(self.columns) + is_parted))
        if is_parted:
            self._replace_last(tuple(fresh.pop() for _ in range(groups)), used)
        while fresh:
            column = tuple(fresh.pop() for _ in range(groups))
            self.columns.append(column)
            for table, page in zip(self.tables, column, strict=True):
                table.append(page.index)
        for number in range(self.length // size, len(self.columns)):
            for own in self.columns[number]:
                if own is not None:
                    own.num_written = min(length - number * size, size)
        self.length = length

    def free_hidden(self) -> None:
        """Give up the pages of which all tokens are hidden from the next token, by the windows of their layers."""
        for group, window in enumerate(self.layout.windows):
            if window is None:
                continue
            hidden = max(self.length - window + 1, 0) // self.pool.page_size
            for number in range(self._num_freed[group], hidden):
                self.columns[number] = tuple(
                    None if other == group else page for other, page in enumerate(self.columns[number])
                )
                self.tables[group][number] = 0
            self._num_freed[group] = max(hidden, self._num_freed[group])

    def fork(self) -> PagedSequence:
        """Return a sequence of the same tokens, in the same pages."""
        forked = PagedSequence(self.pool, self.layout, self.columns, self.length)
        forked._num_freed = list(self._num_freed)
        return forked

    def _replace_last(self, column: tuple[Page, ...], used: int) -> None:
        """Replace the last pages by copies of their first ``used`` tokens."""
        for table, page, own in zip(self.tables, self.columns[-1], column, strict=True):
            assert page is not None, "the page of the last token is never freed"
            self.pool.copy(page, own, used)
            table[-1] = own.index
        self.columns[-1] = column


@final
class RaggedStep:
    """New tokens of several sequences: the last ``counts[i]`` tokens of ``sequences[i]``, for which it took room.

    ``positions`` (tokens,) are the positions of the new tokens in their texts, and ``last`` (sequences,) the places of
    the last token of each sequence among all new tokens. All sequences have the ``layout``.
    """

    def __init__(
        self, pool: PagePool, layout: PageLayout, sequences: Sequence[PagedSequence], counts: Sequence[int]
    ) -> None:
        self.sequences, self.counts, self.layout, self.to_stored = list(sequences), list(counts), layout, pool.to_stored
        longest = max((len(sequence.columns) for sequence in sequences), default=0)
        tables = np.zeros((layout.num_groups, len(sequences), longest), dtype=np.int32)
        for row, sequence in enumerate(sequences):
            tables[:, row, : len(sequence.columns)] = sequence.tables
        number, lengths = (
            np.array(counts, dtype=np.int64),
            np.array([sequence.length for sequence in sequences], dtype=np.int64),
        )
        ends = number.cumsum()
        owner = np.repeat(np.arange(len(counts)), number)
        place = np.arange(len(owner)) - (ends - lengths)[owner]  # the position in the text
        self.positions, self.last = torch.from_numpy(place), torch.from_numpy(ends - 1)
        self.pages = torch.from_numpy(tables[:, owner, place // pool.page_size].astype(np.int64))
        """The page of each new token, (groups, tokens)."""
        self.row = torch.from_numpy(place % pool.page_size)
        self.tables, self.lengths = torch.from_numpy(tables), torch.from_numpy(lengths)
        self.starts = (ends - number).tolist()
        self.num_new = torch.from_numpy(number)
        """The number of new tokens of each sequence, (sequences,)."""
        self.has_several = bool((number > 1).any())
        slots = layout.layers_per_page
        self._key, self._value = (side.unflatten(1, (slots, -1)).unbind(1) for side in (pool.key, pool.value))

    def pages_of(self, number: int) -> PagedKeysValues:
        """The pages of all sequences in the layer with this number, counted from 0, new tokens included."""
        slot = self.layout.slot[number]
        table = self.tables[self.layout.group[number]]
        return PagedKeysValues(self._key[slot], self._value[slot], table, self.lengths, self.num_new)

    def layer(self, number: int) -> RaggedPages:
        """Make the state of the layer with this number, counted from 0."""
        slot = self.layout.slot[number]
        return RaggedPages(self, self.layout.group[number], self._key[slot], self._value[slot])


@final
class RaggedPages(State):
    """The state of one layer in a ``RaggedStep``: its part of the pages of its ``group``.

    New keys and values are (1, key_heads, tokens, head_dim), the concatenated tokens of all sequences.
    """

    def __init__(self, step: RaggedStep, group: int, key_pages: Tensor, value_pages: Tensor) -> None:
        self.step, self.group, self.key_pages, self.value_pages = step, group, key_pages, value_pages
        self.length = max((sequence.length for sequence in step.sequences), default=0)

    @property
    def next_positions(self) -> Int[Tensor, " tokens"]:
        """The position of each new token in its text."""
        return self.step.positions

    @property
    def bytes(self) -> StateBytes:
        """The memory of one sequence in this layer, without the free part of its last page."""
        sides = (self.key_pages, self.value_pages)
        return StateBytes(sum(pages.element_size() * pages.shape[1] * pages.shape[3] for pages in sides))

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

    def extended(self, key: Float[Tensor, "1 key_heads tokens head_dim"], value: Tensor) -> RaggedPages:
        """Write the keys and values of the new tokens into their pages, in place; return the same state."""
        page = self.step.pages[self.group]
        self.key_pages[page, :, self.step.row] = self.step.to_stored(key[0].transpose(0, 1))
        self.value_pages[page, :, self.step.row] = self.step.to_stored(value[0].transpose(0, 1))
        return self

    def attention(
        self,
        query: Float[Tensor, "1 heads tokens head_dim"],
        *,
        mask: Mask | None,
        impl: str,
        **terms: Any,
    ) -> Float[Tensor, "1 heads tokens value_dim"]:
        """Compute attention of the new tokens, each to its own sequence, by the keys and values written before.

        Pages are read in place, if ``impl`` is "auto" or "native" and the mask is a band.
        """
        step, checked = self.step, check_terms(query, mask, **terms)
        table = step.tables[self.group]
        pages = PagedKeysValues(self.key_pages, self.value_pages, table, step.lengths, step.num_new)
        attend = partial(attention, impl=impl, **checked._asdict())
        return attend_to_pages(query, pages, checked, impl, lambda: self.attend_each(query, attend))

    def attend_each(self, query: Tensor, attend: Attend) -> Tensor:
        """Compute ``attend`` for one sequence after the other.

        It gets the keys and values of the pages that the sequence still has, at the end of which the queries stand.
        """
        heads, tokens = query.shape[1], query.shape[2]
        output = query.new_empty(1, tokens, heads, numbers_in_row(self.value_pages)).transpose(1, 2)
        for number, (start, sequence) in enumerate(zip(self.step.starts, self.step.sequences, strict=True)):
            first = sequence.num_freed(self.group)
            own, row = slice(start, start + self.step.counts[number]), self.step.tables[self.group, number, first:]
            length = sequence.length - first * self.key_pages.shape[2]
            key, value = (
                gather_sequence(pages, row, length, query.dtype) for pages in (self.key_pages, self.value_pages)
            )
            output[:, :, own] = attend(query[:, :, own], key, value)
        return output

"""Many requests in one batch that is never emptied: each step reads new tokens of all running requests.

    step    a token of each text that is being written, and parts of prompts      -> a token more of each text

Yu et al. 2022 (Orca), section 3; keys and values are in pages of one pool (Kwon et al. 2023), without padding. A
request that has ended leaves at once, and its pages go to the next one that waits. Requests enter in their order, when
the pages that they may need at most are free, so none is ever interrupted. The samples of a prompt share its pages, and
so do prompts that begin alike (``prefix_cache``), also one that begins with an earlier prompt and the text written for
it, as in a chat.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.generation.prefix_cache import PrefixCache, PrefixPage
from regard.mechanisms.page_layout import PageLayout
from regard.mechanisms.page_pool import PagePool
from regard.mechanisms.ragged_pages import PagedSequence, RaggedStep
from regard.models.causal_language_model import CausalLanguageModel
from regard.search.base import Hypothesis, banned_token_ids
from regard.search.token_by_token import TokenSearch
from regard.search.written_text import WrittenText, make_hypotheses

_PROMPT_TOKENS = 2048
"""Tokens of prompts to read in one step; longer prompts are read in parts."""


def _count_spanned(tokens: int, page_size: int) -> int:
    """The most pages in which this many consecutive tokens lie."""
    return (tokens + page_size - 2) // page_size + 1 if tokens else 0


@final
@dataclass(eq=False)
class TextRow:
    """A text that is being written: one sample of a request."""

    request: GenerationRequest
    number: int
    sequence: PagedSequence
    text: WrittenText


@final
@dataclass(eq=False)
class GenerationRequest:
    """A prompt of tokens ``ids`` to continue by at most ``limit`` tokens."""

    ids: list[int]
    limit: int
    rows: list[TextRow] = field(default_factory=list)
    num_reused: int = 0
    """Tokens of the prompt that were not computed, since an earlier prompt began alike."""
    num_read: int = 0
    sequence: PagedSequence = field(init=False, repr=False)
    numbers: Tensor = field(init=False, repr=False)
    path: list[PrefixPage] = field(default_factory=list, repr=False)
    """The pages of the prompt that prompts share: ``num_found`` of earlier requests, then its own."""
    num_found: int = 0
    is_shared: bool = True
    """Whether its next whole page is added to those that prompts share."""
    num_pages: int = 0
    """The most pages that it takes, without those it found."""

    @property
    def is_complete(self) -> bool:
        """Whether all of its texts have ended."""
        return bool(self.rows) and not any(row.text.goes_on for row in self.rows)

    def count_pages(self, page_size: int, layout: PageLayout, *, rows: int, shared: int) -> int:
        """The most pages that it takes if it finds none: whole pages of its prompt once, others for each row.

        In layers with a window it is as many as its tokens in a step, ``rows`` windows, and at most ``shared`` pages of
        the prompt, which later prompts may find, have.
        """
        whole = len(self.ids) // page_size
        each = -(-(len(self.ids) + self.limit) // page_size)
        total = 0
        for window in layout.windows:
            pages = whole + rows * (each - whole)
            if window is not None:
                prompt = _count_spanned(window - 1 + min(len(self.ids), _PROMPT_TOKENS), page_size)
                texts = rows * (_count_spanned(window, page_size) + 1)  # and one that is copied
                pages = min(pages, min(whole, shared) + max(prompt, texts))
            total += pages
        return total

    def hypotheses(self) -> list[Hypothesis]:
        """The texts, the most probable first, without those to which the model gave no finite probability."""
        return make_hypotheses(row.text for row in self.rows)


@final
class ContinuousBatching:
    """Continues requests with ``model`` by ``search``, at most ``tokens`` of prompts and continuations at a time.

    ``prefixes`` may hold pages of earlier prompts in ``pool``, which has no other user.
    """

    def __init__(
        self, model: CausalLanguageModel, search: TokenSearch, pool: PagePool, prefixes: PrefixCache, *, tokens: int
    ) -> None:
        self.model, self.search, self.pool, self.prefixes, self.tokens = model, search, pool, prefixes, tokens
        self._layout = model.page_layout
        self._waiting: deque[GenerationRequest] = deque()
        self._running: list[GenerationRequest] = []
        self._banned = banned_token_ids(model)
        self._end_ids = frozenset(model.end_ids)

    def add(self, request: GenerationRequest) -> None:
        """Add a request, whose ``count_pages`` the pool can hold."""
        self._waiting.append(request)

    def count_pages(self, request: GenerationRequest) -> int:
        """The most pages that a request takes if it finds none."""
        return request.count_pages(
            self.pool.page_size, self._layout, rows=self.search.rows, shared=self.prefixes.max_pages
        )

    @property
    def is_done(self) -> bool:
        """Whether all requests have ended."""
        return not self._waiting and not self._running

    def step(self) -> list[tuple[TextRow, int]]:
        """Read new tokens of the running requests; return the texts that got a token, with this token.

        Any token that ends a text is shown as ``model.end_id``.
        """
        plan = self._plan()
        step = RaggedStep(self.pool, self._layout, plan.sequences, plan.counts)
        logits = self.model.read_pages(torch.tensor(plan.ids), step)
        for sequence in plan.sequences if self._layout.has_windows else ():
            sequence.free_hidden()
        rows: list[TextRow] = []
        places: list[int] = []
        for place, writer in plan.writers:
            new = [writer] if isinstance(writer, TextRow) else _start_rows(writer, self.search.rows)
            rows += new
            places += [place] * len(new)
        return self._write(rows, logits if places == list(range(len(logits))) else logits[places]) if rows else []

    def stop(self, row: TextRow) -> None:
        """End a text after the token that it got last."""
        row.text.is_stopped = True

    def remove_ended(self) -> list[GenerationRequest]:
        """Free the pages of texts that have ended; return the requests of which all have."""
        for request in self._running:
            for row in request.rows:
                if not row.text.goes_on and row.sequence.length:
                    self._share_written(row)
                    row.sequence = PagedSequence(self.pool, self._layout)
        complete = [request for request in self._running if request.is_complete]
        for request in complete:
            request.sequence = PagedSequence(self.pool, self._layout)
            self.prefixes.release(request.path, len(request.path) - request.num_found)
            request.path = []  # so that its pages return to the pool while the caller still holds the request
        self._running = [request for request in self._running if not request.is_complete]
        return complete

    def _plan(self) -> _Plan:
        """Choose the new tokens of a step, take room for them, and let requests enter."""
        plan = _Plan()
        for request in self._running:
            for row in request.rows:
                if row.text.goes_on:
                    plan.add(row.sequence, row.text.ids[-1:], row)
            if not request.rows:
                self._read_prompt(request, plan)
        while self._waiting and plan.room > 0 and self._enter(self._waiting[0]):
            self._running.append(self._waiting.popleft())
            self._read_prompt(self._running[-1], plan)
        return plan

    def _enter(self, request: GenerationRequest) -> bool:
        """Take the pages that earlier prompts left for a request; False if its other pages or tokens do not fit yet."""
        each = [self.search.rows * (len(running.ids) + running.limit) for running in (request, *self._running)]
        if self._running and sum(each) > self.tokens:
            return False
        path = self.prefixes.find(request.ids[:-1])  # at least one token is read, for its logits
        self.prefixes.use(path)
        groups = self._layout.num_groups
        needed = self.count_pages(request) - groups * len(path)
        if self.pool.limit is not None:
            taken = sum(running.num_pages for running in self._running) + groups * self.prefixes.num_pages
            excess = -(-(taken + needed - self.pool.limit) // groups)
            if excess > self.prefixes.num_idle and self._running:
                self.prefixes.release(path, 0)
                return False
            self.prefixes.drop(excess)
        request.path, request.num_found, request.num_pages = path, len(path), needed
        request.num_read = request.num_reused = len(path) * self.pool.page_size
        columns = [node.column for node in path if node.column is not None]
        request.sequence = PagedSequence(self.pool, self._layout, columns, request.num_read)
        request.numbers = self.search.draw_numbers(request.ids, request.limit)
        return True

    def _read_prompt(self, request: GenerationRequest, plan: _Plan) -> None:
        """Add the next part of a prompt to a step, and let later prompts that begin alike find its whole pages."""
        before, sequence, size = request.num_read, request.sequence, self.pool.page_size
        request.num_read = min(len(request.ids), before + plan.room)
        if request.num_read == before:
            return
        is_whole = request.num_read == len(request.ids)
        plan.room -= request.num_read - before
        plan.add(sequence, request.ids[before : request.num_read], request if is_whole else None)
        while request.is_shared and (len(request.path) + 1) * size <= request.num_read:
            start = len(request.path) * size
            column = sequence.columns[len(request.path)]
            if self._layout.has_windows and self.prefixes.is_full:  # else it would keep all pages behind the windows
                request.is_shared = False
            else:
                request.is_shared = self.prefixes.add(request.path, request.ids[start : start + size], column)

    def _share_written(self, row: TextRow) -> None:
        """Let later prompts that begin with the prompt and the text of a row that has ended find its whole pages.

        Pages from which a layer with a window has freed its part are left out, and so are those after them.
        """
        size, sequence = self.pool.page_size, row.sequence
        tokens = (row.request.ids + row.text.ids)[: sequence.length]  # the last one may not have been read
        path = self.prefixes.find(tokens)
        self.prefixes.use(path)
        num_found = len(path)
        for number in range(num_found, len(tokens) // size):
            column = sequence.columns[number]
            if None in column or not self.prefixes.add(path, tokens[number * size : (number + 1) * size], column):
                break
        self.prefixes.release(path, len(path) - num_found)

    def _write(self, rows: list[TextRow], logits: Float[Tensor, "rows vocabulary"]) -> list[tuple[TextRow, int]]:
        """Choose a token for each text."""
        numbers = torch.stack([row.request.numbers[row.number, len(row.text.ids)] for row in rows])
        seen = None if self.search.repetition_penalty == 1 else _find_seen(rows)
        tokens, gained = self.search.choose_from_logits(logits, self._banned, numbers, seen)
        found = []
        for row, token, log_probability in zip(rows, tokens.tolist(), gained.tolist(), strict=True):
            row.text.add(token, log_probability, is_end=token in self._end_ids)
            if math.isfinite(row.text.log_probability):
                found.append((row, self.model.end_id if row.text.has_ended else token))
            else:  # it will be no hypothesis, so its tokens are not shown
                row.text.is_stopped = True
        return found


@final
class _Plan:
    """The new tokens of a step: of each sequence, how many, which, and who writes after them."""

    def __init__(self) -> None:
        self.sequences: list[PagedSequence] = []
        self.counts: list[int] = []
        self.ids: list[int] = []
        self.writers: list[tuple[int, TextRow | GenerationRequest]] = []
        self.room = _PROMPT_TOKENS

    def add(self, sequence: PagedSequence, ids: list[int], writer: TextRow | GenerationRequest | None) -> None:
        """Add tokens of a sequence, and take room for them."""
        sequence.extend(len(ids))
        if writer is not None:
            self.writers.append((len(self.sequences), writer))
        self.sequences.append(sequence)
        self.counts.append(len(ids))
        self.ids += ids


def _find_seen(rows: list[TextRow]) -> Int[Tensor, "rows seen"]:
    """The tokens of each text and its prompt, padded with its first one."""
    seen = [torch.tensor(row.request.ids + row.text.ids) for row in rows]
    longest = max(map(len, seen))
    return torch.stack([torch.cat([call, call[:1].expand(longest - len(call))]) for call in seen])


def _start_rows(request: GenerationRequest, count: int) -> list[TextRow]:
    """Start the texts of a request whose prompt was read; they share its pages."""
    forks = [request.sequence, *(request.sequence.fork() for _ in range(count - 1))]
    request.rows = [
        TextRow(request, number, sequence, WrittenText(request.limit)) for number, sequence in enumerate(forks)
    ]
    return request.rows

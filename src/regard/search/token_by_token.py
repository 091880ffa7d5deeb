"""The decoding loop of greedy search and sampling, which choose one token in each step.

    y_t = choose(log P(. | y_1 .. y_t-1, x))

With a repetition penalty r, logits z of tokens that occur in y_1 .. y_t-1, or in a prompt, are first replaced by z / r
if they are positive, else by z r: Keskar et al. 2019, "CTRL", section 4.1, in the form of its published code for logits
of either sign. Rows that have ended are removed from the batch, so no step computes for them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import check_number
from regard.models.base import Decoder, EncoderDecoder
from regard.search.base import Hypothesis, Search, banned_token_ids, eval_mode
from regard.search.blockwise_topk import log_probabilities

Value = TypeVar("Value")


@final
class TokenStep(NamedTuple):
    """A step of a search that decides token by token: the ``rows`` that go on, in order, and the token of each.

    Row ``i`` belongs to source ``i // search.rows``. Any token that ends a target is shown as ``model.end_id``.
    """

    rows: list[int]
    tokens: list[int]


Steps: TypeAlias = Generator[TokenStep, set[int] | None, list[list[Hypothesis]]]
"""Yields each step, and may be sent the rows to stop after it; returns the hypotheses of each source."""


class TokenSearch(Search):
    """A search that decides token by token, so that its tokens can be read while it runs."""

    repetition_penalty: float

    @final
    def stream(self, model: Decoder, source: Tensor, lengths: Tensor, *, most: int | None = None) -> Steps:
        """Decode like ``search``, and yield each step: an iterator of ``TokenStep``.

        ``send`` a set of rows to stop them: their hypotheses end with the token of the step, and are not ``finished``.
        The hypotheses are the value of the generator, which StopIteration carries. Arguments and errors as for
        ``search``.
        """
        lengths, limits = self.prepare(model, source, lengths, most)
        return self._stream(model, source, lengths, limits)

    @final
    def decode(
        self,
        model: Decoder,
        source: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"],
        most: Int[Tensor, " batch"],
    ) -> list[list[Hypothesis]]:
        """Choose the tokens of each source, step by step. See ``Search.decode``."""
        return run_to_end(self._steps(model, source, lengths, most))

    @abstractmethod
    def draw_numbers(self, ids: Sequence[int], most: int) -> Float[Tensor, "rows most"]:
        """Draw the random numbers of at most ``most`` steps for each row of a source, which the source decides.

        The first numbers do not depend on ``most``. A search without chance returns zeros.
        """

    @abstractmethod
    def choose(self, known: Float[Tensor, "rows vocabulary"], numbers: Float[Tensor, "rows"]) -> Int[Tensor, " rows"]:
        """Choose a token for each row from log-probabilities, by its random number in this step.

        Banned tokens have a log-probability of -infinity. A search without chance ignores the numbers.
        """

    @torch.no_grad()  # around each step, and not around what the caller does between two of them
    def _stream(self, model: Decoder, source: Tensor, lengths: Tensor, limits: Tensor) -> Steps:
        if len(source) == 0:
            return []
        with eval_mode(model):
            hypotheses = yield from self._steps(model, source, lengths, limits)
        self.check_found(hypotheses)
        return hypotheses

    def _steps(self, model: Decoder, source: Tensor, lengths: Tensor, most: Tensor) -> Steps:
        each, longest = self.rows, int(most.max())
        sources = zip(source.tolist(), lengths.tolist(), strict=True)
        numbers = torch.cat([self.draw_numbers(ids[:length], longest) for ids, length in sources]).to(source.device)
        banned, end_ids = banned_token_ids(model), torch.tensor(model.end_ids, dtype=torch.long, device=source.device)
        tokens, state = model.prefill(source, lengths=lengths)
        rows = torch.arange(len(source) * each, device=source.device)
        if each > 1:
            tokens, state = tokens[rows // each], state.reordered(rows // each)
        limits = most.repeat_interleave(each)
        seen = None if self.repetition_penalty == 1 else _start_seen(model, source, lengths).repeat_interleave(each, 0)
        written = rows.new_full((len(rows), longest), model.end_id)
        stopped = torch.zeros_like(rows, dtype=torch.bool)
        log_probability = torch.zeros(len(rows), device=source.device)
        for place in range(longest):
            logits, state = model.step(tokens, state)
            known = log_probabilities(logits, banned)
            ranked = known
            if seen is not None:
                ranked = log_probabilities(penalize_seen(logits, seen, self.repetition_penalty), banned)
            tokens = self.choose(ranked, numbers[rows, place])
            log_probability = log_probability.to(known).index_add(0, rows, known.gather(1, tokens[:, None])[:, 0])
            has_ended = (tokens[:, None] == end_ids).any(dim=1)  # torch.isin takes ten times as long for so few
            tokens = torch.where(has_ended, model.end_id, tokens)
            written[rows, place] = tokens
            stop = yield TokenStep(rows.tolist(), tokens.tolist())
            left = ~has_ended & (place + 1 < limits[rows])
            if stop:
                is_stopped = torch.isin(rows, torch.tensor(sorted(stop), device=rows.device))
                stopped[rows] = is_stopped & ~has_ended
                left &= ~is_stopped
            going = left.nonzero()[:, 0]
            if len(going) == 0:
                break
            if seen is not None:
                seen = torch.cat([seen, tokens[:, None]], dim=1)[going]
            if len(going) < len(rows):
                rows, tokens, state = rows[going], tokens[going], state.reordered(going)
        return _make_hypotheses(written, log_probability, limits, stopped, model.end_id, each)


def run_to_end(steps: Generator[object, Any, Value]) -> Value:
    """Run a generator to its end, without what it yields, and return its value."""
    try:
        while True:
            next(steps)
    except StopIteration as ended:
        value: Value = ended.value
        return value


def check_repetition_penalty(penalty: float) -> float:
    """Return the penalty as a float. Raises OptionError unless it is above 0."""
    check_number("repetition_penalty", penalty, above=0.0)
    return float(penalty)


def _start_seen(model: Decoder, source: Tensor, lengths: Tensor) -> Int[Tensor, "batch seen"]:
    """The tokens of each prompt, padded with its first one; none for an encoder-decoder, which reads another text."""
    if isinstance(model, EncoderDecoder):
        return source[:, :0]
    slots = torch.arange(source.shape[1], device=source.device)
    return torch.where(slots < lengths[:, None], source, source[:, :1])


def penalize_seen(
    logits: Float[Tensor, "rows vocabulary"], seen: Int[Tensor, "rows seen"], penalty: float
) -> Float[Tensor, "rows vocabulary"]:
    """Divide the positive logits of seen tokens by the penalty, and multiply the others by it."""
    wide = logits.float() if logits.dtype.itemsize == 2 else logits
    found = wide.gather(1, seen)
    return wide.scatter(1, seen, torch.where(found > 0, found / penalty, found * penalty))


def _make_hypotheses(
    written: Tensor, log_probability: Tensor, limits: Tensor, stopped: Tensor, end_id: int, each: int
) -> list[list[Hypothesis]]:
    """Make hypotheses from rows of tokens padded with ``end_id``; skip rows with a non-finite log-probability."""
    counts = (written != end_id).sum(dim=1)
    finite = log_probability.isfinite()
    columns = (written, counts, log_probability, (counts < limits) & ~stopped, finite)
    by_source: list[list[Hypothesis]] = [[] for _ in range(len(written) // each)]
    for row, (ids, count, total, finished, is_finite) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if is_finite:
            by_source[row // each].append(Hypothesis(tuple(ids[:count]), total, total, finished))
    return [sorted(hypotheses, key=lambda one: -one.score) for hypotheses in by_source]

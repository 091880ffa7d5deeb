"""The decoding loop of greedy search and sampling, which choose one token in each step.

    y_t = choose(log P(. | y_1 .. y_t-1, x))

With a repetition penalty r, logits z of tokens that occur in y_1 .. y_t-1, or in a prompt, are first replaced by z / r
if they are positive, else by z r: Keskar et al. 2019, "CTRL", section 4.1, in the form of its published code for logits
of either sign. Rows that have ended are removed from the batch, so no step computes for them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.devices import has_float64
from regard.errors import check_number
from regard.layers.eval_mode import eval_mode
from regard.models.base import Decoder, EncoderDecoder
from regard.search.base import Hypothesis, Search, banned_token_ids
from regard.search.blockwise_topk import log_probabilities
from regard.search.written_text import WrittenText, make_hypotheses

Value = TypeVar("Value")


@final
class ChosenTokens(NamedTuple):
    """The token of each row, and its log-probability in nats, (rows,) each."""

    tokens: Int[Tensor, " rows"]
    log_probability: Float[Tensor, " rows"]


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
    @explain_arguments
    def stream(self, model: Decoder, source: Tensor, lengths: Tensor, *, max_tokens: int | None = None) -> Steps:
        """Decode like ``search``, and yield each step: an iterator of ``TokenStep``.

        ``send`` a set of rows to stop them: their hypotheses end with the token of the step, and are not ``finished``.
        The hypotheses are the value of the generator, which StopIteration carries. Arguments and errors as for
        ``search``; RefusedError for prompts of different lengths if the model's positions depend on the length.
        """
        lengths, limits = self.prepare(model, source, lengths, max_tokens)
        return self._stream(model, source, lengths, limits)

    @final
    def decode(
        self,
        model: Decoder,
        source: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"],
        max_tokens: Int[Tensor, " batch"],
    ) -> list[list[Hypothesis]]:
        """Choose the tokens of each source, step by step. See ``Search.decode``."""
        return run_to_end(self._steps(model, source, lengths, max_tokens))

    @abstractmethod
    def draw_numbers(self, ids: Sequence[int], max_tokens: int) -> Float[Tensor, "rows max_tokens"]:
        """Draw the random numbers of at most ``max_tokens`` steps for each row of a source, which the source decides.

        The first numbers do not depend on ``max_tokens``. A search without chance returns zeros.
        """

    @abstractmethod
    def choose(self, known: Float[Tensor, "rows vocabulary"], numbers: Float[Tensor, "rows"]) -> Int[Tensor, " rows"]:
        """Choose a token for each row from log-probabilities, by its random number in this step.

        Banned tokens have a log-probability of -infinity. A search without chance ignores the numbers.
        """

    def choose_from_logits(
        self,
        logits: Float[Tensor, "rows vocabulary"],
        banned: Int[Tensor, " banned"],
        numbers: Float[Tensor, " rows"],
        seen: Int[Tensor, "rows seen"] | None,
    ) -> ChosenTokens:
        """Choose a token for each row from the model's logits, and say how probable the model finds it.

        ``seen`` are the tokens that occurred before, if there is a repetition penalty; the log-probability is without.
        """
        known = ranked = log_probabilities(logits, banned)
        if seen is not None:
            ranked = log_probabilities(penalize_seen(logits, seen, self.repetition_penalty), banned)
        tokens = self.choose(ranked, numbers)
        return ChosenTokens(tokens, known.gather(1, tokens[:, None])[:, 0])

    @torch.no_grad()  # around each step, and not around what the caller does between two of them
    def _stream(self, model: Decoder, source: Tensor, lengths: Tensor, limits: Tensor) -> Steps:
        if len(source) == 0:
            return []
        with eval_mode(model):
            hypotheses = yield from self._steps(model, source, lengths, limits)
        self.check_found(hypotheses)
        return hypotheses

    def _steps(self, model: Decoder, source: Tensor, lengths: Tensor, max_tokens: Tensor) -> Steps:
        each, longest, limits = self.rows, int(max_tokens.max()), max_tokens.tolist()
        sources = zip(source.tolist(), lengths.tolist(), strict=True)
        numbers = torch.cat([self.draw_numbers(ids[:length], longest) for ids, length in sources])
        numbers = numbers.to(source.device) if has_float64(source.device) else numbers
        banned, end_ids = banned_token_ids(model), frozenset(model.end_ids)
        tokens, state = model.prefill(source, lengths=lengths)
        texts = [WrittenText(limits[row // each]) for row in range(len(source) * each)]
        if each > 1:
            of_sources = torch.arange(len(texts), device=source.device) // each
            tokens, state = tokens[of_sources], state.reordered(of_sources)
        seen = None if self.repetition_penalty == 1 else _start_seen(model, source, lengths).repeat_interleave(each, 0)
        rows = list(range(len(texts)))
        for place in range(longest):
            logits, state = model.step(tokens, state)
            tokens, gained = self.choose_from_logits(logits, banned, numbers[:, place], seen)
            for row, token, log_probability in zip(rows, tokens.tolist(), gained.tolist(), strict=True):
                texts[row].add(token, log_probability, is_end=token in end_ids)
                if not math.isfinite(texts[row].log_probability):  # it will be no hypothesis: its tokens are not shown
                    texts[row].is_stopped = True
            shown = [row for row in rows if math.isfinite(texts[row].log_probability)]
            latest = [model.end_id if texts[row].has_ended else texts[row].ids[-1] for row in shown]
            for row in ((yield TokenStep(shown, latest)) if shown else None) or ():
                texts[row].is_stopped = True
            going = [index for index, row in enumerate(rows) if texts[row].goes_on]
            if not going:
                break
            if seen is not None:
                seen = torch.cat([seen, tokens[:, None]], dim=1)
            if len(going) < len(rows):
                rows, entries = [rows[index] for index in going], torch.tensor(going, device=source.device)
                tokens, numbers, state = tokens[entries], numbers[entries.to(numbers.device)], state.reordered(entries)
                seen = None if seen is None else seen[entries]
        return [make_hypotheses(texts[first : first + each]) for first in range(0, len(texts), each)]


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

"""Beam search: extend the ``width`` most probable prefixes of a target, token by token.

    score(Y) = log P(Y | X) / lp(Y) + cp(X; Y)
    lp(Y)    = (5 + |Y|)^alpha / (5 + 1)^alpha
    cp(X; Y) = beta sum_i log(min(sum_j p_ij, 1))           p_ij: the weight of source token i when y_j was written

Wu et al. 2016, "Google's neural machine translation system", equation 14. |Y| counts the end token, whose probability
is part of P(Y | X). alpha is ``length_penalty``, beta ``coverage_penalty``.

Each step considers all continuations of a source's live hypotheses. Those with the end token become finished if they
are among the ``width`` most probable continuations; the ``width`` most probable others stay live. Live hypotheses all
have the same length, so they are compared by log P alone. A hypothesis is pruned as soon as it can no longer win: log P
never increases, lp is largest at the maximum length, and cp is at most 0, so its continuations score at most

    log P / lp(max_tokens)

If the ``best`` finished hypotheses have all reached that bound, the hypothesis is pruned, and so are all less probable
ones. Pruned hypotheses could only have displaced others that are pruned too, so pruning does not change the result.

The search of a source ends when no hypothesis is live, or once ``patience`` * ``width`` of its hypotheses have ended,
whichever is first: Kasai et al. 2022, "A call for clarity in beam search", section 2. Patience 1 is the criterion of
fairseq and Marian; it takes fewer steps, and long targets, which large length penalties favour, win less often.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, RefusedError, check_count, is_number, short_repr
from regard.models.base import Decoder, EncoderDecoder
from regard.search.base import MAX_ROWS, Hypothesis, Search, banned_token_ids
from regard.search.beam_state import BeamState, Continuations
from regard.search.blockwise_topk import blockwise_topk, log_probabilities


@final
@explain_arguments
class Beam(Search):
    """Beam search: finds the best-scoring targets with ``width`` live hypotheses for each source.

    Args:
        width: beam width: live hypotheses of a source.
        length_penalty: alpha; 0 compares log-probabilities, which prefers short targets. Vaswani et al. 2017, section
            6.1, use 0.6.
        coverage_penalty: beta, a penalty for targets that leave parts of the source untranslated; it needs a model with
            attention, and makes steps slower. 0 disables it.
        best: number of targets to return for each source, at most ``width``; fewer if the search finds fewer.
        patience: the search of a source stops after ``patience`` * ``width`` of its hypotheses have ended. With
            ``math.inf`` it continues until no live hypothesis can win.

    Targets that were cut at the maximum number of tokens are ranked after all finished ones.

    Raises OptionError for options out of range.
    """

    def __init__(
        self,
        width: int = 5,
        *,
        length_penalty: float = 0.6,
        coverage_penalty: float = 0.0,
        best: int = 1,
        patience: float = 1.0,
    ) -> None:
        check_count("width", width, maximum=MAX_ROWS)
        check_count("best", best)
        _check_penalty("length_penalty", length_penalty)
        _check_penalty("coverage_penalty", coverage_penalty)
        if best > width:
            raise OptionError(
                "best is larger than the beam width",
                expected=f"best from 1 to {width}",
                got=f"best={best}",
                do=f"pass width={best}",
            )
        _check_patience(patience)
        self.width, self.best, self.patience = width, best, patience
        self.length_penalty, self.coverage_penalty = length_penalty, coverage_penalty

    def __repr__(self) -> str:
        options = ("width", "length_penalty", "coverage_penalty", "best", "patience")
        return f"Beam({', '.join(f'{name}={getattr(self, name)}' for name in options)})"

    @property
    def rows(self) -> int:
        """The number of live hypotheses of each source, ``width``. See ``Search.rows``."""
        return self.width

    def decode(
        self,
        model: Decoder,
        source: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"],
        max_tokens: Int[Tensor, " batch"],
    ) -> list[list[Hypothesis]]:
        """Search each source's targets with the beam. See ``Search.decode``."""
        (tokens, state), banned = model.prefill(source, lengths=lengths), banned_token_ids(model)
        end_ids = torch.tensor(model.end_ids, dtype=torch.long, device=source.device)
        most_ends = max(len(model.end_ids), 1)
        live = BeamState.from_first_tokens(tokens)
        finished = FinishedHypotheses(len(source), self.best, source.device)
        ended = torch.zeros_like(lengths)
        for length in range(1, int(max_tokens.max()) + 1):
            logits, state, live = self._next_logits(model, state, live)
            # More tokens than the width, since some may be end tokens.
            likeliest = blockwise_topk(log_probabilities(logits, banned), self.width + most_ends)
            candidates = live.top_continuations(*likeliest, (1 + most_ends) * self.width)
            score, ends = self._score(candidates, live, lengths, length), _is_end(candidates, end_ids)
            ended[candidates.source] += ends[:, : self.width].sum(dim=1)
            better = self._select_finished(candidates, ends, score, finished)
            _add_finished(finished, better, candidates, live.tokens[:, 1:], score, ended=True)
            lives = self._select_live(candidates, ends, max_tokens, finished)
            lives &= (ended[candidates.source] < self.patience * self.width)[:, None]
            cut = lives & (max_tokens[candidates.source] == length)[:, None]
            _add_finished(finished, cut, candidates, live.tokens[:, 1:], score, ended=False)
            lives &= ~cut
            row = candidates.row[lives]
            if len(row) == 0:
                break
            state = _reorder_state(state, row, len(live.source))
            live = live.extend(row, candidates.token[lives], candidates.log_probability[lives])
        return finished.to_lists()

    def _next_logits(self, model: Decoder, state: Any, live: BeamState) -> tuple[Tensor, Any, BeamState]:
        """The logits of each row's next token, the next state, and the beam with updated coverage."""
        tokens = live.tokens[:, -1]
        if self.coverage_penalty == 0:
            return (*model.step(tokens, state), live)
        if not isinstance(model, EncoderDecoder):
            raise RefusedError(
                "coverage_penalty needs a model with a source",
                expected="an EncoderDecoder",
                got=type(model).__name__,
                do="pass coverage_penalty=0",
            )
        logits, state, weights = model.step_with_weights(tokens, state)
        return logits, state, live.add_coverage(weights)

    def _score(
        self, candidates: Continuations, live: BeamState, lengths: Tensor, length: int
    ) -> Float[Tensor, "sources candidates"]:
        """The scores of the continuations as complete targets: equation 14."""
        score = candidates.log_probability / self._length_divisor(length)
        if live.coverage is None:
            return score
        real = torch.arange(live.coverage.shape[1], device=lengths.device) < lengths[live.source][:, None]
        # A source token with weight 0 counts with the smallest positive number, to avoid a score of -infinity.
        covered = live.coverage.clamp(torch.finfo(live.coverage.dtype).tiny, 1).log().where(real, 0.0).sum(dim=1)
        return score + self.coverage_penalty * covered[candidates.row]

    def _select_finished(
        self, candidates: Continuations, ends: Tensor, score: Tensor, finished: FinishedHypotheses
    ) -> Bool[Tensor, "sources candidates"]:
        """Mask of the continuations that end, are among the ``width`` best, and beat the worst finished hypothesis."""
        better = ends & (score > finished.score_to_beat[candidates.source][:, None])
        better[:, self.width :] = False
        return better

    def _select_live(
        self, candidates: Continuations, ends: Tensor, max_tokens: Tensor, finished: FinishedHypotheses
    ) -> Bool[Tensor, "sources candidates"]:
        """Mask of the ``width`` best continuations that do not end, as far as they can still beat finished ones."""
        bound = candidates.log_probability / self._length_divisor(max_tokens[candidates.source][:, None])
        may = ~ends & (bound > finished.score_to_beat[candidates.source][:, None])
        return may & ((~ends).cumsum(dim=1) <= self.width)

    def _length_divisor(self, length: int | Tensor) -> float | Tensor:
        """The length penalty lp of a target with ``length`` tokens."""
        divisor: float | Tensor = ((5 + length) / 6) ** self.length_penalty
        return divisor


def _is_end(candidates: Continuations, end_ids: Int[Tensor, " ends"]) -> Bool[Tensor, "sources candidates"]:
    """Mask of the continuations by an end token."""
    return (candidates.token[..., None] == end_ids).any(dim=-1) & (candidates.log_probability > -torch.inf)


def _add_finished(
    finished: FinishedHypotheses,
    mask: Bool[Tensor, "sources candidates"],
    candidates: Continuations,
    written: Int[Tensor, "rows length"],
    score: Float[Tensor, "sources candidates"],
    *,
    ended: bool,
) -> None:
    """Add continuations to the finished hypotheses, without the last token if they ``ended`` (the end token)."""
    if not mask.any():
        return
    source, ids = candidates.source[mask.nonzero()[:, 0]], written[candidates.row[mask]]
    if not ended:
        ids = torch.cat([ids, candidates.token[mask][:, None]], dim=1)
    finished.add(source, ids, score[mask], candidates.log_probability[mask], finished=ended)


def _reorder_state(state: Any, row: Int[Tensor, " new"], rows: int) -> Any:
    """Select rows of the state; returns the state itself if ``row`` selects all ``rows`` in order."""
    if len(row) == rows and torch.equal(row, torch.arange(rows, device=row.device)):
        return state
    return state.reordered(row)


def _check_penalty(name: str, penalty: object) -> None:
    if not is_number(penalty) or float(penalty) < 0:
        raise OptionError(
            f"wrong {name}",
            expected="a finite number of 0 or more",
            got=short_repr(penalty),
            do="pass 0 to disable it",
        )


def _check_patience(patience: object) -> None:
    never = isinstance(patience, float) and patience == math.inf
    if not never and not (is_number(patience) and float(patience) > 0):
        raise OptionError(
            "wrong patience", expected="a number above 0, or math.inf", got=short_repr(patience), do="1.0 is usual"
        )


@final
class FinishedHypotheses:
    """The ``best`` hypotheses of each source; finished ones are ranked before those cut at the maximum length.

    ``score_to_beat`` (sources,) is the lowest score of the ``best`` finished ones, -infinity if there are fewer.
    """

    def __init__(self, sources: int, best: int, device: torch.device) -> None:
        self._best = best
        self._hypotheses: list[list[Hypothesis]] = [[] for _ in range(sources)]
        self.score_to_beat = torch.full((sources,), -torch.inf, device=device)

    def add(
        self,
        source: Int[Tensor, " some"],
        ids: Int[Tensor, "some length"],
        score: Float[Tensor, " some"],
        log_probability: Float[Tensor, " some"],
        *,
        finished: bool,
    ) -> None:
        """Add hypotheses of the given sources, and keep the ``best`` of each source."""
        columns = (source.tolist(), ids.tolist(), score.tolist(), log_probability.tolist())
        for number, tokens, worth, total in zip(*columns, strict=True):
            self._hypotheses[number].append(Hypothesis(tuple(tokens), worth, total, finished))
        for number in set(columns[0]):
            self._hypotheses[number].sort(key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
            del self._hypotheses[number][self._best :]
        self.score_to_beat = torch.tensor([self._worst(those) for those in self._hypotheses]).to(score)

    def to_lists(self) -> list[list[Hypothesis]]:
        """The hypotheses of each source, the best first."""
        return self._hypotheses

    def _worst(self, those: list[Hypothesis]) -> float:
        return those[-1].score if len(those) == self._best and those[-1].finished else -torch.inf

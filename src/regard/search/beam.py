"""Beam search: the ``width`` most probable beginnings of a target, grown token by token.

    score(Y) = log P(Y | X) / lp(Y) + cp(X; Y)
    lp(Y)    = (5 + |Y|)^alpha / (5 + 1)^alpha
    cp(X; Y) = beta sum_i log(min(sum_j p_ij, 1))           p_ij: the weight of source token i when y_j was written

Wu et al. 2016, "Google's neural machine translation system", equation 14. |Y| counts the end, whose probability is part
of P(Y | X). alpha is ``length_penalty``, beta ``coverage_penalty``.

In each step, of all continuations of a source's live hypotheses, those that end are finished if they are among the
``width`` most probable, and the ``width`` most probable that do not end live on. Live hypotheses are all of one
length, so log P alone compares them. One is dropped as soon as it can no longer overtake: log P only falls, lp is
largest at the most tokens allowed, and cp is at most 0, so whatever comes of it scores at most

    log P / lp(most)

If the ``best`` finished ones have reached that, it is dead, and so are all that are less probable. Dead ones could only
displace dead ones, so dropping them changes no result.

A source is done when nothing of it lives, or once ``patience`` * ``width`` of its hypotheses have ended, whichever is
first: Kasai et al. 2022, "A call for clarity in beam search", section 2. With patience 1 that is how most translators
were measured (fairseq, Marian); it takes fewer steps, and long targets, which large penalties favour, win less often.
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
from regard.search.finished_hypotheses import FinishedHypotheses


@final
@explain_arguments
class Beam(Search):
    """The search for the best score among ``width`` hypotheses of each source at a time.

    Args:
        width: live hypotheses of a source.
        length_penalty: alpha; 0 compares log-probabilities, which prefers short targets. 0.6 is that of Vaswani et al.
            2017, section 6.1.
        coverage_penalty: beta, for targets that leave parts of the source out; needs a model with attention, and steps
            take longer. 0 is without.
        best: how many targets of a source are given, at most ``width``. There are fewer if the search found fewer.
        patience: how many of a source's hypotheses have to end, in beam widths, before the search is content with the
            best of them. ``math.inf`` is never: it goes on until nothing that lives can win.

    A target that was cut at the most tokens allowed comes after all that are finished.

    Raises OptionError for options outside of these ranges.
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
        check_count("width", width, most=MAX_ROWS)
        check_count("best", best)
        _check_penalty("length_penalty", length_penalty)
        _check_penalty("coverage_penalty", coverage_penalty)
        if best > width:
            raise OptionError(
                "more targets are asked for than the beam is wide",
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
        """See ``Search.rows``."""
        return self.width

    def decode(
        self,
        model: Decoder,
        source: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"],
        most: Int[Tensor, " batch"],
    ) -> list[list[Hypothesis]]:
        """See ``Search.decode``."""
        (tokens, state), banned = model.prefill(source, lengths=lengths), banned_token_ids(model)
        live = BeamState.from_first_tokens(tokens)
        finished = FinishedHypotheses(len(source), self.best, source.device)
        ended = torch.zeros_like(lengths)
        for length in range(1, int(most.max()) + 1):
            logits, state, live = self._next_logits(model, state, live)
            # One token more than the width, since one may be the end.
            likeliest = blockwise_topk(log_probabilities(logits, banned), self.width + 1)
            candidates = live.top_continuations(*likeliest, 2 * self.width)
            score, ends = self._score(candidates, live, lengths, length), _is_end(candidates, model.end_id)
            ended[candidates.source] += ends[:, : self.width].sum(dim=1)
            better = self._select_finished(candidates, ends, score, finished)
            _add_finished(finished, better, candidates, live.tokens[:, 1:], score, ended=True)
            lives = self._select_live(candidates, ends, most, finished)
            lives &= (ended[candidates.source] < self.patience * self.width)[:, None]
            cut = lives & (most[candidates.source] == length)[:, None]
            _add_finished(finished, cut, candidates, live.tokens[:, 1:], score, ended=False)
            lives &= ~cut
            row = candidates.row[lives]
            if len(row) == 0:
                break
            state = _reorder_state(state, row, len(live.source))
            live = live.extend(row, candidates.token[lives], candidates.log_probability[lives])
        return finished.to_lists()

    def _next_logits(self, model: Decoder, state: Any, live: BeamState) -> tuple[Tensor, Any, BeamState]:
        """What may follow each row, the next state, and the rows with what they have covered by now."""
        tokens = live.tokens[:, -1]
        if self.coverage_penalty == 0:
            return (*model.step(tokens, state), live)
        if not isinstance(model, EncoderDecoder):
            raise RefusedError(
                "coverage is that of a source, and this model has none",
                expected="an EncoderDecoder",
                got=type(model).__name__,
                do="pass coverage_penalty=0",
            )
        logits, state, weights = model.step_with_weights(tokens, state)
        return logits, state, live.add_coverage(weights)

    def _score(
        self, candidates: Continuations, live: BeamState, lengths: Tensor, length: int
    ) -> Float[Tensor, "sources candidates"]:
        """Equation 14, of the continuations as whole targets."""
        score = candidates.log_probability / self._length_divisor(length)
        if live.coverage is None:
            return score
        real = torch.arange(live.coverage.shape[1], device=lengths.device) < lengths[live.source][:, None]
        # A token that got no weight at all counts as one with the smallest number that there is, and not as -infinity.
        covered = live.coverage.clamp(torch.finfo(live.coverage.dtype).tiny, 1).log().where(real, 0.0).sum(dim=1)
        return score + self.coverage_penalty * covered[candidates.row]

    def _select_finished(
        self, candidates: Continuations, ends: Tensor, score: Tensor, finished: FinishedHypotheses
    ) -> Bool[Tensor, "sources candidates"]:
        """Those that end, are among the ``width`` best, and beat what is finished."""
        better = ends & (score > finished.score_to_beat[candidates.source][:, None])
        better[:, self.width :] = False
        return better

    def _select_live(
        self, candidates: Continuations, ends: Tensor, most: Tensor, finished: FinishedHypotheses
    ) -> Bool[Tensor, "sources candidates"]:
        """Those that do not end, are the ``width`` best of these, and may yet beat what is finished."""
        bound = candidates.log_probability / self._length_divisor(most[candidates.source][:, None])
        may = ~ends & (bound > finished.score_to_beat[candidates.source][:, None])
        return may & ((~ends).cumsum(dim=1) <= self.width)

    def _length_divisor(self, length: int | Tensor) -> float | Tensor:
        """lp of a target of that length."""
        divisor: float | Tensor = ((5 + length) / 6) ** self.length_penalty
        return divisor


def _is_end(candidates: Continuations, end_id: int) -> Bool[Tensor, "sources candidates"]:
    """Which continuations are whole targets."""
    return (candidates.token == end_id) & (candidates.log_probability > -torch.inf)


def _add_finished(
    finished: FinishedHypotheses,
    which: Bool[Tensor, "sources candidates"],
    candidates: Continuations,
    written: Int[Tensor, "rows length"],
    score: Float[Tensor, "sources candidates"],
    *,
    ended: bool,
) -> None:
    """Put continuations among the finished hypotheses; the token of those that ended is the end, and left out."""
    if not which.any():
        return
    source, ids = candidates.source[which.nonzero()[:, 0]], written[candidates.row[which]]
    if not ended:
        ids = torch.cat([ids, candidates.token[which][:, None]], dim=1)
    finished.add(source, ids, score[which], candidates.log_probability[which], finished=ended)


def _reorder_state(state: Any, row: Int[Tensor, " new"], rows: int) -> Any:
    """The state of the given rows of ``rows``; as it is where they are all of them, in order."""
    if len(row) == rows and torch.equal(row, torch.arange(rows, device=row.device)):
        return state
    return state.reordered(row)


def _check_penalty(name: str, penalty: object) -> None:
    if not is_number(penalty) or float(penalty) < 0:
        raise OptionError(
            f"wrong {name}",
            expected="a finite number of 0 or more",
            got=short_repr(penalty),
            do="0 is without",
        )


def _check_patience(patience: object) -> None:
    never = isinstance(patience, float) and patience == math.inf
    if not never and not (is_number(patience) and float(patience) > 0):
        raise OptionError(
            "wrong patience", expected="a number above 0, or math.inf", got=short_repr(patience), do="1.0 is usual"
        )

"""Sampling: each token is drawn from the model's distribution.

    y_t ~ P(. | y_1 .. y_t-1, x)^(1/temperature), among the top_k most probable tokens, of these among the fewest with a
          total probability of top_p, and of these among those with at least min_p times the largest probability

Nucleus sampling (top_p): Holtzman et al. 2020, "The curious case of neural text degeneration", equations 2 and 3.
top_k: Fan et al. 2018, "Hierarchical neural story generation", section 5.4. min_p: Nguyen et al. 2024, "Turning up the
heat", section 3. A token is drawn by inverse transform sampling, from one uniform number in (0, 1] for each position.

top_p and min_p need the most probable tokens only. The first 64 are usually enough; a row that needs more takes eight
times as many, so the vocabulary is never sorted for a few of its tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.devices import has_float64
from regard.errors import OptionError, check_count, check_number, is_number, short_repr
from regard.search.base import MAX_ROWS
from regard.search.blockwise_topk import blockwise_topk
from regard.search.token_by_token import TokenSearch, check_repetition_penalty

_FIRST_COUNT, _GROWTH = 64, 8
"""The most probable tokens to take at first, and the factor for rows that need more."""


@final
@explain_arguments
class Sampling(TokenSearch):
    """Draws ``best`` targets at random, the most probable first. A hypothesis' score is its log-probability.

    Args:
        seed: random seed. The samples of a source depend only on the seed and on the ids of the source, not on the rest
            of the batch or on earlier samples. Equal sources get equal targets.
        temperature: below 1 makes likely tokens likelier, above 1 less likely.
        top_k: draw from the ``top_k`` most probable tokens; 0 is all.
        top_p: draw from the fewest tokens with a total probability of at least ``top_p``; 1 is all.
        min_p: draw from the tokens with at least ``min_p`` times the probability of the most probable one; 0 is all.
        repetition_penalty: above 1 makes tokens that occurred before less likely, see ``token_by_token``.
        best: targets of a source, drawn independently, possibly with repetitions.

    Raises OptionError for options out of range.
    """

    def __init__(
        self,
        *,
        seed: int,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        best: int = 1,
    ) -> None:
        check_count("seed", seed, minimum=0)
        check_count("top_k", top_k, minimum=0)
        check_count("best", best, maximum=MAX_ROWS)
        if not is_number(temperature) or float(temperature) <= 0:
            raise OptionError(
                "wrong temperature",
                expected="a finite number above 0",
                got=short_repr(temperature),
                do="try 0.8; for 0 use `Greedy()`",
            )
        if not is_number(top_p) or not 0 < float(top_p) <= 1:
            raise OptionError("wrong `top_p`", expected="0 < `top_p` <= 1", got=short_repr(top_p), do="try 0.9")
        check_number("min_p", min_p, minimum=0.0, maximum=1.0)
        self.seed, self.temperature, self.top_k, self.top_p, self.best = seed, temperature, top_k, top_p, best
        self.min_p, self.repetition_penalty = float(min_p), check_repetition_penalty(repetition_penalty)

    def __repr__(self) -> str:
        options = ("seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "best")
        return f"Sampling({', '.join(f'{name}={getattr(self, name)}' for name in options)})"

    @property
    def rows(self) -> int:
        """The number of samples of each source, ``best``. See ``Search.rows``."""
        return self.best

    def draw_numbers(self, ids: Sequence[int], max_tokens: int) -> Float[Tensor, "rows max_tokens"]:
        """Draw uniform numbers in (0, 1], from a generator that the seed and the source decide."""
        text = " ".join(map(str, [self.seed, *ids]))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        return 1 - torch.rand(max_tokens, self.best, generator=generator, dtype=torch.float64).T

    def choose(self, known: Float[Tensor, "rows vocabulary"], numbers: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Draw a token for each row by its uniform number. See ``TokenSearch.choose``."""
        if not has_float64(known.device):  # numbers in float64 are on the CPU then
            return self.choose(known.cpu(), numbers.cpu()).to(known.device)
        scaled = known.double() / self.temperature
        if self.top_k == 0 and self.top_p == 1 and self.min_p == 0:
            return _draw_by_number(scaled.softmax(dim=1), numbers)
        count = self.top_k or min(_FIRST_COUNT, known.shape[1])
        if self.top_k:
            values, ids = blockwise_topk(known, count)
            top = (values.double() / self.temperature).softmax(dim=1)
            return _draw_from(self._truncate(top), ids, numbers)
        total = scaled.logsumexp(dim=1, keepdim=True)
        tokens = numbers.new_zeros(len(known), dtype=torch.long)
        rows = torch.arange(len(known), device=known.device)
        while True:  # each row by itself, so that it does not depend on the others
            values, ids = blockwise_topk(known[rows], count)
            top = (values.double() / self.temperature - total[rows]).exp()
            is_enough = self._is_enough(top) if count < known.shape[1] else torch.ones_like(rows, dtype=torch.bool)
            tokens[rows[is_enough]] = _draw_from(
                self._truncate(top[is_enough]), ids[is_enough], numbers[rows[is_enough]]
            )
            rows, count = rows[~is_enough], min(count * _GROWTH, known.shape[1])
            if len(rows) == 0:
                return tokens

    def _truncate(self, top: Float[Tensor, "rows likeliest"]) -> Float[Tensor, "rows likeliest"]:
        """Set the probabilities of tokens that ``top_p`` and ``min_p`` exclude to 0; they are in descending order."""
        if self.top_p < 1:
            below = top.cumsum(dim=1) - top
            top = top.masked_fill(below >= self.top_p, 0.0)
        return top.masked_fill(top < self.min_p * top[:, :1], 0.0) if self.min_p else top

    def _is_enough(self, top: Float[Tensor, "rows likeliest"]) -> Bool[Tensor, " rows"]:
        """Whether all tokens of a row that are not excluded are among these."""
        is_unknown = top.isnan().any(dim=1)
        is_nucleus = (top.sum(dim=1) >= self.top_p) if self.top_p < 1 else torch.zeros_like(is_unknown)
        is_above = top[:, -1] < self.min_p * top[:, 0]
        return is_nucleus | is_above | is_unknown


def _draw_from(
    probability: Float[Tensor, "rows likeliest"], ids: Int[Tensor, "rows likeliest"], numbers: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    return ids.gather(1, _draw_by_number(probability, numbers)[:, None])[:, 0]


def _draw_by_number(probability: Float[Tensor, "rows tokens"], numbers: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The first token whose cumulative share reaches the number (rows,) in (0, 1]."""
    distribution = probability.cumsum(dim=1)
    token = torch.searchsorted(distribution, numbers[:, None] * distribution[:, -1:])
    return token.clamp_max(probability.shape[1] - 1)[:, 0]  # for rows of NaN

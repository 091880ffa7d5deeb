"""Sampling: each token is drawn from the model's distribution.

    y_t ~ P(. | y_1 .. y_t-1, x)^(1/temperature), among the top_k most probable tokens, and of these among the fewest
          with a total probability of top_p

Nucleus sampling (top_p): Holtzman et al. 2020, "The curious case of neural text degeneration", equations 2 and 3.
top_k: Fan et al. 2018, "Hierarchical neural story generation", section 5.4. A token is drawn by inverse transform
sampling, from one uniform number in (0, 1] for each position.
"""

from __future__ import annotations

import hashlib
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_count, is_number, short_repr
from regard.models.base import Decoder
from regard.search.base import MAX_ROWS, Hypothesis, Search
from regard.search.blockwise_topk import blockwise_topk
from regard.search.token_by_token import decode_token_by_token


@final
@explain_arguments
class Sampling(Search):
    """Draws ``best`` targets at random, the most probable first. A hypothesis' score is its log-probability.

    Args:
        seed: random seed. The samples of a source depend only on the seed and on the ids of the source, not on the rest
            of the batch or on earlier samples. Equal sources get equal targets.
        temperature: below 1 makes likely tokens likelier, above 1 less likely.
        top_k: draw from the ``top_k`` most probable tokens; 0 is all.
        top_p: draw from the fewest tokens with a total probability of at least ``top_p``; 1 is all.
        best: targets of a source, drawn independently, possibly with repetitions.

    Raises OptionError for options out of range.
    """

    def __init__(
        self, *, seed: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, best: int = 1
    ) -> None:
        check_count("seed", seed, least=0)
        check_count("top_k", top_k, least=0)
        check_count("best", best, most=MAX_ROWS)
        if not is_number(temperature) or float(temperature) <= 0:
            raise OptionError(
                "wrong temperature",
                expected="a finite number above 0",
                got=short_repr(temperature),
                do="for 0 use Greedy()",
            )
        if not is_number(top_p) or not 0 < float(top_p) <= 1:
            raise OptionError("wrong top_p", expected="0 < top_p <= 1", got=short_repr(top_p), do="try 0.9")
        self.seed, self.temperature, self.top_k, self.top_p, self.best = seed, temperature, top_k, top_p, best

    def __repr__(self) -> str:
        options = ("seed", "temperature", "top_k", "top_p", "best")
        return f"Sampling({', '.join(f'{name}={getattr(self, name)}' for name in options)})"

    @property
    def rows(self) -> int:
        """The number of samples of each source, ``best``. See ``Search.rows``."""
        return self.best

    def decode(
        self,
        model: Decoder,
        source: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"],
        most: Int[Tensor, " batch"],
    ) -> list[list[Hypothesis]]:
        """Draw the tokens of each source, step by step. See ``Search.decode``."""
        numbers = self._uniform_numbers(source, lengths, int(most.max()))

        def choose(known: Tensor, rows: Tensor, place: int) -> Tensor:
            return self._draw(known, numbers[rows, place])

        return decode_token_by_token(model, source, lengths, most, choose, each=self.best)

    def _uniform_numbers(self, source: Tensor, lengths: Tensor, places: int) -> Float[Tensor, "rows places"]:
        """Uniform numbers in (0, 1] for each row and position, from a separate generator for each source."""
        drawn = []
        for ids, length in zip(source.tolist(), lengths.tolist(), strict=True):
            text = " ".join(map(str, [self.seed, *ids[:length]]))
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
            drawn.append(1 - torch.rand(places, self.best, generator=generator, dtype=torch.float64))
        return torch.stack(drawn).transpose(1, 2).flatten(0, 1).to(source.device)

    def _draw(self, known: Float[Tensor, "rows vocabulary"], numbers: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Draw a token for each row by its uniform number."""
        values, ids = known, None
        if self.top_k or self.top_p < 1:
            values, ids = blockwise_topk(known, self.top_k or known.shape[1])
        probability = (values.double() / self.temperature).softmax(dim=1)
        below = probability.cumsum(dim=1) - probability
        if self.top_p < 1:
            probability = probability.masked_fill(below >= self.top_p, 0.0)
        distribution = probability.cumsum(dim=1)
        token = torch.searchsorted(distribution, numbers[:, None] * distribution[:, -1:])
        token = token.clamp_max(values.shape[1] - 1)  # for rows of NaN
        return (token if ids is None else ids.gather(1, token))[:, 0]

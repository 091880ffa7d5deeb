"""``BucketHash``: the buckets of the tokens of a call, by random rotations (``locality_hash``).

    h_r(x) = argmax([x R_r; -x R_r])      tokens (batch, heads, length, head_dim) -> (batch, heads, length, rounds)

Kitaev et al. 2020, "Reformer: the efficient Transformer", section 2. Where the number of buckets follows from the
number of visible tokens (``bucket_counts``), texts and heads may have different numbers.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import DtypeError, check_count
from regard.kernels.autocast import disable_autocast
from regard.kernels.request import Request, repeat_heads
from regard.kernels.results import accumulation_dtype
from regard.masks.causal_parts import causal_parts
from regard.masks.memo import Memo
from regard.mechanisms.bucket_counts import choose_factors, choose_level, count_buckets, split_buckets
from regard.mechanisms.locality_hash import draw_rotations, hash_tokens
from regard.tensors import has_values, is_traced

_FIXED_BUCKETS = 64
_MAX_ROUNDS = 1024
_MAX_SEED = 2**63 - 1


@final
class BucketHash:
    """Hashes tokens in ``rounds`` rounds. They and ``seed`` may be changed between calls.

    ``factors`` are those of the number of buckets; None if it follows from the number of tokens.
    """

    def __init__(self, *, heads: int, head_dim: int, rounds: int, factors: tuple[int, ...] | None, seed: int) -> None:
        self.heads, self.head_dim, self.factors = heads, head_dim, factors
        self.rounds, self.seed = rounds, seed
        self._drawn = Memo()

    @property
    def rounds(self) -> int:
        """The number of hash rounds. Setting it raises OptionError unless it is an integer from 1 to 1024."""
        return self._rounds

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        check_count("rounds", rounds, minimum=1, maximum=_MAX_ROUNDS)
        self._rounds = int(rounds)

    @property
    def seed(self) -> int:
        """The seed of the random rotations. Setting it raises OptionError unless it is an integer of 0 or more."""
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        check_count("seed", seed, minimum=0, maximum=_MAX_SEED)
        self._seed = int(seed)

    def of_request(self, request: Request) -> dict[str, Tensor]:
        """Return the buckets of the tokens of a call: those that were passed, or the hash.

        Raises DtypeError for buckets that are not integers.
        """
        passed = {name: _check_integers(name, codes).long() for name, codes in request.inputs.items()}
        if len(passed) == 2:
            return passed
        factors, levels = self.choose_factors(request)
        found: dict[str, Tensor] = {}
        for name, side in (("query_buckets", request.query), ("key_buckets", request.key)):
            again = name == "key_buckets" and side is request.query and "query_buckets" not in passed
            found[name] = found["query_buckets"] if again else self.find_buckets(side, factors, levels)
        return found | passed

    def choose_factors(self, request: Request) -> tuple[tuple[int, ...], Int[Tensor, "#batch #heads"] | None]:
        """Return the factors of the number of buckets of a call; or, where texts differ, the logarithm of each."""
        parts = causal_parts(request.mask, request.frame)
        same_for_all = parts is not None and parts.high is None and request.frame.queries == request.frame.keys
        if self.factors is not None or parts is None or not same_for_all:
            return self.fixed_factors, None
        return choose_factors(request.frame, parts.visible_keys(request.frame, request.device))

    def find_buckets(
        self,
        tokens: Float[Tensor, "batch any_heads length head_dim"],
        factors: tuple[int, ...],
        levels: Int[Tensor, "#batch #heads"] | None = None,
    ) -> Int[Tensor, "batch heads length rounds"]:
        """Hash tokens into buckets: with ``factors``, or as many as ``levels`` says for each batch entry and head."""
        with torch.no_grad(), disable_autocast(tokens.device):
            tokens = repeat_heads(tokens.detach().to(accumulation_dtype(tokens.dtype)), self.heads // tokens.shape[1])
            if levels is None:
                return hash_tokens(tokens, self.get_rotations(factors, tokens.device), factors)
            buckets = torch.zeros(*tokens.shape[:3], self.rounds, dtype=torch.long, device=tokens.device)
            highest = choose_level(tokens.shape[2])
            present = levels.unique().tolist() if has_values(levels) else range(highest + 1)
            for level in present:
                if level > 0:
                    some = split_buckets(2**level)
                    found = hash_tokens(tokens, self.get_rotations(some, tokens.device), some)
                    buckets = torch.where((levels == level)[..., None, None], found, buckets)
            return buckets

    def get_rotations(
        self, factors: tuple[int, ...], device: torch.device
    ) -> Float[Tensor, "heads rounds head_dim columns"]:
        """Draw the random rotations, or take the rotations of an earlier call."""
        sizes = {"heads": self.heads, "head_dim": self.head_dim, "rounds": self.rounds}

        def draw() -> Tensor:
            return draw_rotations(seed=self.seed, factors=factors, **sizes).to(device)

        name = (factors, self.rounds, self.seed, device)
        return draw() if is_traced() else self._drawn.get_or_compute(name, draw)

    @property
    def fixed_factors(self) -> tuple[int, ...]:
        """The factors of the number of buckets where it must not depend on the number of tokens."""
        return split_buckets(_FIXED_BUCKETS) if self.factors is None else self.factors

    def bound_buckets(self, of_queries: Tensor, of_keys: Tensor) -> int:
        """Return a number above all bucket numbers."""
        if of_queries.numel() == 0 or of_keys.numel() == 0:
            return 1
        if has_values(of_queries) and has_values(of_keys):
            highest = int(of_keys.max()) if of_queries is of_keys else max(int(of_queries.max()), int(of_keys.max()))
            return 1 + max(0, highest)
        by_length = 1 if self.factors is not None else 2 ** choose_level(of_keys.shape[2])
        return max(by_length, count_buckets(self.fixed_factors))


def _check_integers(name: str, buckets: Tensor) -> Tensor:
    """Return the buckets that a caller passed. Raises DtypeError unless they are integers."""
    if buckets.dtype.is_floating_point or buckets.dtype.is_complex or buckets.dtype == torch.bool:
        raise DtypeError(
            f"{name} are not integers",
            expected="the number of a bucket for each token and round, such as torch.int64",
            got=str(buckets.dtype),
            do="convert them with .long(), after rounding if they are not whole",
        )
    return buckets

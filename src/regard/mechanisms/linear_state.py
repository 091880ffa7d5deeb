"""``LinearState``: the decoding state of mechanisms that sum keys and values into a matrix of constant size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import DtypeError, ShapeError
from regard.fields import repr_of_fields
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.mechanisms.clean_tokens import is_false
from regard.mechanisms.key_value_cache import take_rows
from regard.mechanisms.state import State, StateBytes


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class LinearState(State):
    """Decoding state: the matrix S (batch, heads, rows, columns) in ``sums``; whether any key so far was not finite,
    and whether any was visible (batch, heads each). S is divided by exp(``log_scale``) (batch, heads) if keys have
    weights, else ``log_scale`` is None. The tensors are None before the first token.
    """

    __repr__ = repr_of_fields

    length: int = 0
    sums: Tensor | None = None
    has_nonfinite: Tensor | None = None
    has_visible_key: Tensor | None = None
    log_scale: Tensor | None = None

    @property
    def bytes(self) -> StateBytes:
        """The memory of one sequence, of any length."""
        return StateBytes.of_sums(self.sums, self.has_nonfinite, self.has_visible_key, self.log_scale)

    @property
    def may_be_broken(self) -> bool:
        """Whether a visible key that is not finite was read, as far as is known without waiting for a device."""
        return self.has_nonfinite is not None and not is_false(self.has_nonfinite)

    def check(self, request: Request, rows: int, columns: int) -> None:
        """Raise ShapeError or DtypeError unless the tokens of a request fit a matrix of this size."""
        sizes = (*request.query.shape[:2], rows, columns)
        if self.sums is not None and tuple(self.sums.shape) != sizes:
            raise ShapeError(
                "new tokens do not fit the state",
                expected=f"batch, heads, and a matrix of the state: {tuple(self.sums.shape)}",
                got=f"{sizes}",
                do="start from the empty state for another batch or model",
            )
        dtype = accumulation_dtype(request.query.dtype)
        if self.sums is not None and (self.sums.dtype != dtype or self.sums.device != request.device):
            raise DtypeError(
                "new tokens do not fit the state",
                expected=f"tokens that are summed in {self.sums.dtype} on {self.sums.device}",
                got=f"{request.query.dtype} on {request.device}",
                do="start from the empty state for another dtype or device",
            )

    def extended(
        self,
        keys: int,
        sums: Tensor,
        bad_key: Bool[Tensor, "batch heads keys"],
        visible_keys: Bool[Tensor, "batch heads keys"],
        log_scale: Tensor | None = None,
    ) -> LinearState:
        """Return the state after ``keys`` more keys, with their sums and their flags."""
        broken, some = bad_key.any(-1), visible_keys.any(-1)
        if self.has_nonfinite is not None and self.has_visible_key is not None:
            broken, some = self.has_nonfinite | broken, self.has_visible_key | some
        return LinearState(self.length + keys, sums, broken, some, log_scale)

    def reordered(self, entries: Int[Tensor, " batch"]) -> LinearState:
        """Select batch entries by index, in that order. Raises OptionError for invalid indices."""
        parts = (self.sums, self.has_nonfinite, self.has_visible_key, self.log_scale)
        return LinearState(self.length, *(None if part is None else take_rows(part, entries) for part in parts))


def any_visible(
    flags: Bool[Tensor, "batch heads keys"],
    known: Bool[Tensor, "batch heads"] | None,
    queries: int,
    high: int | None,
    starts: Bool[Tensor, "batch keys"] | None = None,
) -> Bool[Tensor, "batch heads queries"]:
    """Whether any key that a query may attend to has the flag, or an earlier one: ``known``.

    ``high`` is the last new key visible to query 0, None if all queries see all keys. ``starts`` is True where texts
    begin: then each query sees the keys of its text up to its own, and there is no earlier key.
    """
    if starts is not None:
        return _any_visible_in_text(flags, starts)
    known = flags.new_zeros(flags.shape[:2]) if known is None else known
    if high is None:
        return (flags.any(-1) | known)[..., None].expand(*known.shape, queries)
    prefixes = torch.cat([known[..., None], flags], dim=2).cumsum(2) > 0
    last = torch.arange(high + 1, high + 1 + queries, device=flags.device).clamp(min=0, max=flags.shape[2])
    return prefixes[..., last]


def largest_in_text(
    numbers: Float[Tensor, "batch heads tokens"], starts: Bool[Tensor, "batch tokens"]
) -> Float[Tensor, "batch heads tokens"]:
    """The largest number of a token and the earlier ones of its text; ``starts`` is True where texts begin.

    In steps that double how far back a token looks: no number of another text takes part.
    """
    text = starts.cumsum(1)[:, None]
    reach = 1
    while reach < numbers.shape[2]:
        earlier = torch.where(text[..., reach:] == text[..., :-reach], numbers[..., :-reach], -torch.inf)
        numbers = torch.cat([numbers[..., :reach], torch.maximum(numbers[..., reach:], earlier)], dim=2)
        reach *= 2
    return numbers


def _any_visible_in_text(
    flags: Bool[Tensor, "batch heads tokens"], starts: Bool[Tensor, "batch tokens"]
) -> Bool[Tensor, "batch heads tokens"]:
    """Whether a token, or an earlier one of its text, has the flag; ``starts`` is True where texts begin."""
    counts = flags.cumsum(2)
    earlier = (counts - flags.long()).masked_fill(~starts[:, None], 0)  # tokens of earlier texts with the flag
    return counts > earlier.cummax(2).values

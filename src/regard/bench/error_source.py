"""``ErrorSource``: the tokens on which mechanisms are compared with exact attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

from regard.available_memory import available_memory
from regard.bench.choose_mechanisms import EXACT
from regard.bench.problem import DISTRIBUTION, Tokens
from regard.bench.settings import BenchSettings
from regard.comparison import ComparisonSummary, MechanismChoice, compare, sample_rows
from regard.errors import RefusedError
from regard.mechanisms import Mechanism

_TENSORS_OF_ROWS = 10
"""Tensors of rows x keys that a comparison holds at once, an upper bound."""


class ErrorSource(ABC):
    """Compares mechanisms with exact attention; ``tokens_note`` says on which tokens, for reports."""

    tokens_note: str

    @abstractmethod
    def compare(self, choice: MechanismChoice, mechanism: Mechanism, tokens: Tokens) -> tuple[ComparisonSummary, int]:
        """Compare a mechanism with exact attention; return the measures and the number of queries.

        ``mechanism`` was made from ``choice`` and timed on random ``tokens``. Raises RefusedError if it cannot be
        compared.
        """


@final
class SyntheticErrors(ErrorSource):
    """Compares on the random tokens, some queries of the first text of the batch."""

    tokens_note = DISTRIBUTION

    def __init__(self, settings: BenchSettings) -> None:
        self._settings = settings

    def compare(self, choice: MechanismChoice, mechanism: Mechanism, tokens: Tokens) -> tuple[ComparisonSummary, int]:
        """Compare with ``dot_product`` on the first text."""
        del choice
        settings, length = self._settings, tokens[0].shape[2]
        query, key, value = (token[:1] for token in tokens)
        sizes = {"heads": settings.heads, "head_dim": settings.head_dim, "seed": settings.seed}
        exact = MechanismChoice(EXACT).build(length=length, **sizes)
        rows = sample_rows(length, affordable_rows(settings, settings.heads, length), seed=settings.seed)
        found = compare(exact, mechanism, query, key, value, settings.mask, rows=rows, top=settings.top)
        return found.summary(), len(rows)


def affordable_rows(settings: BenchSettings, heads: int, length: int) -> int:
    """Return how many rows of weights fit into the available memory, at most ``settings.rows``.

    ``heads`` are the heads of all texts. Raises RefusedError if there is not enough memory for one row.
    """
    room = available_memory()
    bytes_per_row = _TENSORS_OF_ROWS * heads * length * max(4, settings.torch_dtype.itemsize)
    count = settings.rows if room is None else min(settings.rows, room // bytes_per_row)
    if count == 0:
        raise RefusedError(
            "there is not enough memory for one row of weights",
            expected=f"{bytes_per_row:,} bytes",
            got=f"{room:,} bytes",
            do="use fewer heads or tokens",
        )
    return count

"""Run the comparisons of a property, and find the largest difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.noise import difference, largest
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Subject


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """The worst of several comparisons, or of other measurements: what exceeds its threshold most."""

    difference: float
    threshold: float
    change: str
    output: int | None = None
    """Position in ``base`` of the output that differs; None if outputs do not belong to tokens."""
    source: int | None = None
    comparison: Comparison | None = None
    """None for what is measured otherwise."""
    module: str | None = None
    """The module in which it begins, where the measurement knows it."""
    cause: str = ""

    @property
    def is_leak(self) -> bool:
        """Whether the difference is more than rounding."""
        return self.difference > self.threshold


def compare_all(subject: Subject, comparisons: Sequence[Comparison], noise: NoiseFloor) -> Outcome:
    """Run each call once, and return the worst comparison."""
    outputs: dict[Call, Tensor] = {}
    for comparison in comparisons:
        for span in (comparison.base, comparison.other):
            if span.call not in outputs:
                outputs[span.call] = subject.run(span.call)
    return worst_of([_compare(comparison, outputs, noise) for comparison in comparisons])


def worst_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome that exceeds its threshold most."""
    return max(outcomes, key=lambda outcome: outcome.difference / max(outcome.threshold, 1e-300))


def _compare(comparison: Comparison, outputs: dict[Call, Tensor], noise: NoiseFloor) -> Outcome:
    base = cut(outputs[comparison.base.call], comparison.base, comparison.count)
    other = cut(outputs[comparison.other.call], comparison.other, comparison.count)
    scale = max(largest(base), largest(other))
    rows = [difference(left, right) for left, right in zip(base, other, strict=True)]
    worst = max(range(len(rows)), key=rows.__getitem__)
    is_aligned = belongs_to_tokens(outputs[comparison.base.call], comparison.base.call)
    output = comparison.base.start + worst if is_aligned else None
    return Outcome(rows[worst], noise.threshold(scale), comparison.change, output, comparison.source, comparison)


def cut(outputs: Tensor, span: Span, count: int) -> Tensor:
    """The outputs (positions, features) of a span; all of a row if outputs do not belong to tokens."""
    row = outputs[span.row]
    return row[span.start : span.start + count] if belongs_to_tokens(outputs, span.call) else row


def belongs_to_tokens(outputs: Tensor, call: Call) -> bool:
    """Whether there is an output for each token."""
    return outputs.shape[1] == call.length

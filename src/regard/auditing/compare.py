"""Run the comparisons of a property, and find the largest difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.noise import FLOAT32_EPSILON, SAFETY, difference, largest, rounded_buffers
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Subject

BUFFERS_SHARE = 0.1
"""A difference that changes by more than this share of it when buffers are rounded again is their rounding."""


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
    limit_of_buffers: float = 0.0
    """The largest difference that rounding of buffers to float32 can explain."""

    @property
    def is_small(self) -> bool:
        """Whether rounding of buffers can explain the difference."""
        return self.difference <= self.limit_of_buffers

    @property
    def is_leak(self) -> bool:
        """Whether the difference is more than rounding."""
        return self.difference > self.threshold


def compare_all(subject: Subject, comparisons: Sequence[Comparison], noise: NoiseFloor) -> Outcome:
    """Run each call once, and return the worst comparison."""
    outcomes = _compare_each(subject, comparisons, noise)
    if subject.precision == "float64" and any(outcome.is_leak and outcome.is_small for outcome in outcomes):
        with rounded_buffers(subject):
            again = _compare_each(subject, comparisons, noise)
        outcomes = [_allow_for_buffers(*pair) for pair in zip(outcomes, again, strict=True)]
    return worst_of(outcomes)


def _allow_for_buffers(outcome: Outcome, again: Outcome) -> Outcome:
    """The outcome with a larger threshold if its difference is another one when buffers are rounded again."""
    change = abs(again.difference - outcome.difference)
    is_rounding = outcome.is_small and change > BUFFERS_SHARE * outcome.difference
    return replace(outcome, threshold=max(outcome.threshold, outcome.limit_of_buffers)) if is_rounding else outcome


def _compare_each(subject: Subject, comparisons: Sequence[Comparison], noise: NoiseFloor) -> list[Outcome]:
    outputs: dict[Call, Tensor] = {}
    for comparison in comparisons:
        for span in (comparison.base, comparison.other):
            if span.call not in outputs:
                outputs[span.call] = subject.run(span.call)
    return [_compare(comparison, outputs, noise) for comparison in comparisons]


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
    return Outcome(
        rows[worst],
        noise.threshold(scale),
        comparison.change,
        output,
        comparison.source,
        comparison,
        limit_of_buffers=SAFETY * FLOAT32_EPSILON * scale,
    )


def cut(outputs: Tensor, span: Span, count: int) -> Tensor:
    """The outputs (positions, features) of a span; all of a row if outputs do not belong to tokens."""
    row = outputs[span.row]
    return row[span.start : span.start + count] if belongs_to_tokens(outputs, span.call) else row


def belongs_to_tokens(outputs: Tensor, call: Call) -> bool:
    """Whether there is an output for each token."""
    return outputs.shape[1] == call.length

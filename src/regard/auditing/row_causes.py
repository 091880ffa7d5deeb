"""Causes in the rows of a batch: an operation that mixes them, or places for which the tokens of all rows compete."""

from __future__ import annotations

from dataclasses import replace

from regard.auditing.cache_causes import repeat_row
from regard.auditing.calls import Span
from regard.auditing.compare import Outcome, compare_all
from regard.auditing.noise import difference, largest
from regard.auditing.properties.batch import batch_comparisons
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject

EQUAL_ROWS = 16
"""Rows of one text, enough to exceed the places of experts."""


def explain_rows(subject: Subject, noise: NoiseFloor) -> str:
    """How rows of a batch that has a leak influence one another."""
    outputs = subject.run(subject.call([Row(subject.text(1))] * EQUAL_ROWS))
    if difference(outputs[:1].expand_as(outputs), outputs) > noise.threshold(largest(outputs)):
        return (
            "equal rows of one batch have different outputs: tokens of all rows compete for places, "
            "as in experts with a capacity"
        )
    return "the rows of the batch are mixed: an operation runs over the dimension of the batch"


def explain_other_rows(subject: Subject, outcome: Outcome, noise: NoiseFloor) -> str:
    """The cause of a leak that comes from other rows: it is gone in batches of one. "" if it is not."""
    comparison = outcome.comparison
    if comparison is None or comparison.base.call.training:
        return ""
    spans = [_alone(span) for span in (comparison.base, comparison.other)]
    alone = replace(comparison, base=spans[0], other=spans[1])
    if compare_all(subject, [alone], noise).is_leak:
        return ""
    if not compare_all(subject, batch_comparisons(subject), noise).is_leak:
        return ""
    return f"nothing leaks in a batch of one: {explain_rows(subject, noise)}"


def _alone(span: Span) -> Span:
    """The span with its row alone in the batch."""
    return replace(span, call=repeat_row(span.call, span.row, 1), row=0)

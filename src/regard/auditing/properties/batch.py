"""Texts of a batch have no influence on one another."""

from __future__ import annotations

from collections.abc import Sequence

from regard.auditing.calls import Comparison, Span
from regard.auditing.properties.property import Property
from regard.auditing.subject import Row, Subject


def _can_ask(subject: Subject) -> str | None:
    del subject
    return None


def _comparisons(subject: Subject) -> Sequence[Comparison]:
    """A text alone, beside others, and at other places of the batch."""
    texts = [Row(subject.text(seed)) for seed in (1, 2, 3, 4)]
    count = subject.stream.length
    alone = subject.call(texts[:1])
    beside = subject.call(texts[:3])
    others = subject.call([texts[0], texts[3], texts[2]])
    moved = subject.call([texts[1], texts[2], texts[0]])
    return [
        Comparison(Span(alone), Span(beside), count, "two texts were added to the batch"),
        Comparison(Span(beside), Span(others), count, "another text of the batch was replaced"),
        Comparison(Span(beside), Span(moved, 2), count, "the texts of the batch were put in another order"),
    ]


BATCH = (Property("batch", "no output depends on the other texts of its batch", _can_ask, _comparisons),)

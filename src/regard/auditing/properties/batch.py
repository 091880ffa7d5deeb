"""Texts of a batch have no influence on one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.properties.property import Property
from regard.auditing.subject import Row, Subject


def _can_ask(subject: Subject) -> str | None:
    del subject
    return None


def batch_comparisons(subject: Subject) -> Sequence[Comparison]:
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


def _reads_media(subject: Subject) -> str | None:
    return "asked of pictures and sounds; of texts see NaN in padding" if subject.stream.dims else None


def _beside_nan(subject: Subject) -> Sequence[Comparison]:
    """A picture or sound beside one of NaN, and beside one of infinity."""
    rows = [Row(subject.text(seed)) for seed in (1, 2)]
    call = subject.call(rows)
    (step,) = call.steps
    found = []
    for word, number in (("NaN", math.nan), ("infinity", math.inf)):
        filled = {name: step.arguments[name].clone() for name in subject.stream.batch_dims}
        for name, values in filled.items():
            values.select(subject.stream.batch_dims[name], 1).fill_(number)
        poisoned = Call((replace(step, arguments={**step.arguments, **filled}),), call.batch)
        found.append(Comparison(Span(call), Span(poisoned), subject.stream.length, f"the other row was {word}"))
    return found


BATCH = (
    Property("batch", "no output depends on the other texts of its batch", _can_ask, batch_comparisons),
    Property("NaN beside it", "NaN in another picture or sound changes no output", _reads_media, _beside_nan),
)

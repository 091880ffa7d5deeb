"""Padding has no influence: whatever its side, its number and what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.properties.property import Property, first_reason
from regard.auditing.subject import Row, Stream, Subject, Text
from regard.language import count_noun

Side: TypeAlias = Literal["left", "right"]
AMOUNTS = (1, 4)
"""Numbers of padding tokens."""


def has_no_prefix(subject: Subject) -> str | None:
    """Why texts cannot be moved in their rows."""
    return "the prefix is counted from the first token of a row" if subject.prefix else None


_SIDES: tuple[tuple[Side, tuple[Callable[[Subject], str | None], ...]], ...] = (
    ("right", ()),
    ("left", (has_no_prefix,)),
)


def _takes_mask(index: int) -> Callable[[Subject], str | None]:
    def check(subject: Subject) -> str | None:
        if index >= len(subject.streams):
            return "the model reads a single sequence"
        stream = subject.streams[index]
        if not stream.mask:
            return f"the model has no argument that hides tokens of {stream.name}"
        return stream.fixed or None

    return check


def pad(subject: Subject, stream: Stream, text: Text, side: Side, hidden: Text) -> Call:
    """A call with one text and hidden tokens beside it."""
    row = _pad_row(stream, text, side, hidden)
    return subject.call([row], stream, **positions_of(stream, row.visible))


def _pad_row(stream: Stream, text: Text, side: Side, hidden: Text) -> Row:
    tokens, padding = (
        torch.ones(stream.length_of(text), dtype=torch.bool),
        torch.zeros(stream.length_of(hidden), dtype=torch.bool),
    )
    if side == "left":
        return Row(stream.join([hidden, text]), torch.cat([padding, tokens]))
    return Row(stream.join([text, hidden]), torch.cat([tokens, padding]))


def positions_of(stream: Stream, *rows: Tensor | None) -> dict[str, Any]:
    """The argument by which places are counted from the first visible token; nothing if a model counts them itself."""
    if not stream.positions or any(row is None for row in rows):
        return {}
    keep = torch.stack([row for row in rows if row is not None])
    return {stream.positions: (keep.long().cumsum(-1) - 1).clamp(min=0)}


def _comparisons(index: int, side: Side) -> Callable[[Subject], Sequence[Comparison]]:
    def make(subject: Subject) -> Sequence[Comparison]:
        return list(_pairs(subject, subject.streams[index], side))

    return make


def _pairs(subject: Subject, stream: Stream, side: Side) -> Iterator[Comparison]:
    """A text alone, and with padding: of several numbers, of each kind of id, and with random tokens in it."""
    text = subject.text(1, stream=stream)
    alone = subject.call([Row(text)], stream)
    for number in AMOUNTS:
        for kind in (*stream.pads[:2], None):
            padded = pad(subject, stream, text, side, stream.padding(number, 40, kind))
            start = number if side == "left" and stream is subject.stream else 0
            words = "random tokens" if kind is None else f"id {kind}"
            change = f"{count_noun(number, 'hidden token')} of {stream.name} on the {side} ({words})"
            yield _compare(subject, stream, side, Span(alone), Span(padded, 0, start), change)
    yield from beside_a_longer_text(subject, stream, side, alone)
    hidden = [stream.padding(AMOUNTS[-1], seed) for seed in (41, 42)]
    first, second = (pad(subject, stream, text, side, tokens) for tokens in hidden)
    start = AMOUNTS[-1] if side == "left" and stream is subject.stream else 0
    change = f"the hidden tokens of {stream.name} on the {side} were replaced"
    yield _compare(subject, stream, side, Span(first, 0, start), Span(second, 0, start), change)


def _compare(subject: Subject, stream: Stream, side: Side, base: Span, other: Span, change: str) -> Comparison:
    """A comparison of all outputs; where another sequence is padded, its visible tokens are compared in modules too."""
    if stream is subject.stream:
        return Comparison(base, other, subject.stream.length, change)

    def read(span: Span) -> Span:
        length = stream.length_of(span.call.steps[0].arguments)
        return replace(span, read=(length, length - stream.length if side == "left" else 0))

    return Comparison(read(base), read(other), subject.stream.length, change, read=stream.length)


def beside_a_longer_text(subject: Subject, stream: Stream, side: Side, alone: Call) -> Iterator[Comparison]:
    """The padded text and a longer one without padding in one batch, in both orders."""
    text, number = subject.text(1, stream=stream), AMOUNTS[-1]
    padded = _pad_row(stream, text, side, stream.padding(number, 40))
    length = stream.length_of(padded.text)
    longer = Row(subject.text(2, length, stream), torch.ones(length, dtype=torch.bool))
    start = number if side == "left" and stream is subject.stream else 0
    for row, rows in enumerate(([padded, longer], [longer, padded])):
        call = subject.call(rows, stream, **positions_of(stream, *(tokens.visible for tokens in rows)))
        change = f"{count_noun(number, 'hidden token')} of {stream.name} on the {side}, beside a longer text"
        yield _compare(subject, stream, side, Span(alone), Span(call, row, start), change)


PADDING = (
    *(
        Property(
            f"padding {side}",
            f"padding on the {side} changes no output: neither its number nor what is in it",
            first_reason(_takes_mask(0), *checks),
            _comparisons(0, side),
        )
        for side, checks in _SIDES
    ),
    *(
        Property(
            f"source padding {side}",
            f"padding of the source on the {side} changes no output, by cross-attention or otherwise",
            first_reason(_takes_mask(1)),
            _comparisons(1, side),
        )
        for side in ("right", "left")
    ),
)

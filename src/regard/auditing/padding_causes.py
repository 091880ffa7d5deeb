"""Why padding changes an output: experiments with the mask of tokens, with what is hidden, and with the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.auditing.cache_causes import repeat_row
from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.compare import Outcome, compare_all
from regard.auditing.noise import difference, largest
from regard.auditing.properties.batch import batch_comparisons
from regard.auditing.properties.padding import Side, beside_a_longer_text, pad, positions_of
from regard.auditing.reach import measure_reach
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Stream, Subject, Text

MAX_WEAKENED = 0.5
"""An influence of hidden tokens below this share of the one without a mask was made smaller by the mask."""

SAME_INFLUENCE = 1e-9
"""Influences that differ by less, relative to the largest, are those of a module without the mask."""


def explain_padding(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    """The cause by experiments with the mask of tokens: leave it out, invert it, exchange what is hidden."""
    comparison = outcome.comparison
    stream = next(stream for stream in subject.streams if stream.mask and f" of {stream.name} " in outcome.change)
    side: Side = "left" if "on the left" in outcome.change else "right"
    if stream.mask not in subject.takes:
        return f"the model has no argument {stream.mask}: it takes it as one of any others, and reads it nowhere"
    text = subject.text(1, stream=stream)
    padded = [pad(subject, stream, text, side, stream.padding(4, seed)) for seed in (41, 42)]
    start, count = (4 if side == "left" and stream is subject.stream else 0), subject.stream.length
    outputs = [_rows(subject, call, start, count) for call in padded]
    if not bool(outputs[0].isfinite().all()):
        return "a hidden token attends to no token, and the softmax of such a row is NaN, which spreads from there"
    threshold, masks = noise.threshold(largest(outputs[0])), (stream.mask, *stream.other_masks)
    others = [pad(subject, stream, text, side, stream.padding(4, seed)) for seed in (43, 44, 45)]
    if all(
        difference(outputs[0], rows) <= threshold
        for rows in (outputs[1], *(_rows(subject, call, start, count) for call in others))
    ):
        return _explain_number(subject, module, stream, text, side, noise)
    everything = stream.make_mask(torch.ones(1, stream.length_of(padded[0].steps[0].arguments), dtype=torch.bool))
    visible = _change_arguments(padded[0], lambda arguments: arguments | dict.fromkeys(masks, everything))
    if difference(outputs[0], _rows(subject, visible, start, count)) <= threshold:
        return f"{stream.mask} has no effect: outputs are the same without it"
    if _holds_inverted(subject, comparison, stream.mask):
        return f"{stream.mask} has the opposite meaning: with True and False exchanged, padding has no influence"
    if module is None or stream is not subject.stream:
        return ""
    influence = _influence_of_hidden(subject, module, padded[0], start)
    if influence is None or not bool((influence > threshold).any()):
        return ""
    name, mask = type(module).__name__, stream.mask
    unmasked = _influence_of_hidden(subject, module, visible, start)
    if unmasked is None:
        return f"hidden tokens change what {name} makes of the others: {mask} does not hide them in it"
    if largest(unmasked) <= threshold:
        return (
            f"hidden tokens change what {name} makes of the others: {mask} "
            "makes them visible in it, where another mask hides them"
        )
    if bool(((influence <= threshold) & (unmasked > threshold)).any()):
        return (
            f"hidden tokens change what {name} makes of the others: {mask} "
            "hides them from some outputs in it, and not from all"
        )
    if largest(influence) < MAX_WEAKENED * largest(unmasked):
        return (
            f"hidden tokens change what {name} makes of the others: {mask} "
            "makes their influence in it smaller, and does not remove it"
        )
    if difference(influence / largest(influence), unmasked / largest(unmasked)) <= SAME_INFLUENCE:
        return f"hidden tokens change what {name} makes of the others: {mask} is not read in it"
    return f"hidden tokens change what {name} makes of the others: {mask} does not hide them in it"


def _explain_number(
    subject: Subject, module: nn.Module | None, stream: Stream, text: Text, side: Side, noise: NoiseFloor
) -> str:
    """The cause where what is in hidden tokens has no influence: their number has, of all ids or of most."""
    alone, start = (
        subject.run(subject.call([Row(text)], stream))[0],
        4 if side == "left" and stream is subject.stream else 0,
    )

    def agrees(call: Call, row: int = 0, start: int = start) -> bool:
        outputs = subject.run(call)[row, start : start + len(alone)]
        return difference(alone, outputs) <= noise.threshold(largest(alone))

    if all(agrees(pad(subject, stream, text, side, stream.padding(4, seed))) for seed in (40, 41)):
        pairs = list(beside_a_longer_text(subject, stream, side, subject.call([Row(text)], stream)))
        by_row = [agrees(pair.other.call, pair.other.row) for pair in pairs]
        if compare_all(subject, batch_comparisons(subject), noise).is_leak:
            return "padding has no influence in a batch of one: the rows of a batch are mixed"
        if by_row == [True, False]:
            return f"the {stream.mask} of the first row of a batch is used for all of its rows"
        return "" if all(by_row) else "padding has no influence in a batch of one, and has beside a longer text"
    for pad_id in stream.pads if _is_of_places(module) else ():
        if agrees(pad(subject, stream, text, side, stream.padding(4, 40, pad_id))):
            return f"hidden tokens are counted as places unless their id is that of padding, {pad_id}"
    counted = "although position_ids are given " if positions_of(stream, torch.ones(3)) else ""
    is_length = side == "right" or not agrees(pad(subject, stream, text, "right", stream.padding(4, 40)), start=0)
    what = "a number follows from the length of the row" if is_length else "places are counted from the padding"
    return f"only the number of hidden tokens counts, not what is in them: {counted}{what}"


def _is_of_places(module: nn.Module | None) -> bool:
    """Whether a module may give tokens their places: one with an embedding in it, or one that is not known."""
    parts = [] if module is None else list(module.modules())
    return module is None or any("Embedding" in type(part).__name__ for part in parts)


def _influence_of_hidden(subject: Subject, module: nn.Module, padded: Call, start: int) -> Tensor | None:
    """The influence of a module's inputs at hidden tokens on its outputs at visible ones, which begin at ``start``."""
    reach = measure_reach(subject, module, call=repeat_row(padded, 0, padded.length + 1))
    visible = range(start, start + subject.stream.length)
    hidden = [token for token in range(padded.length) if token not in visible]
    return None if reach is None else reach[visible.start : visible.stop, hidden]


def _rows(subject: Subject, call: Call, start: int, count: int) -> Tensor:
    return subject.run(call)[0, start : start + count]


def _change_arguments(call: Call, change: Callable[[dict[str, object]], dict[str, object]]) -> Call:
    return replace(call, steps=tuple(replace(step, arguments=change(dict(step.arguments))) for step in call.steps))


def _holds_inverted(subject: Subject, comparison: Comparison | None, mask: str) -> bool:
    """Whether the comparison holds with the opposite mask of tokens."""
    if comparison is None:
        return False

    def invert(arguments: dict[str, object]) -> dict[str, object]:
        value = arguments.get(mask)
        if isinstance(value, Tensor):
            arguments[mask] = ~value if value.dtype == torch.bool else 1 - value
        return arguments

    spans = [
        Span(_change_arguments(span.call, invert), span.row, span.start) for span in (comparison.base, comparison.other)
    ]
    base, other = (_rows(subject, span.call, span.start, comparison.count) for span in spans)
    return difference(base, other) <= 1e-9 * largest(base)

"""Why a text that is read with a cache has other outputs: experiments with positions, parts, and the reach of a layer.

The reach of a layer (``regard.auditing.reach``) is measured for the whole text, and for the same text in parts. Keys
that only one of the two reads say what is wrong: the first or the last key of the cache, all of them, those behind a
window, tokens that were cut off, hidden ones. Where both read the same keys, positions are shifted until outputs agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.compare import Outcome, compare_all
from regard.auditing.kept_states import find_unmoved
from regard.auditing.properties.cache import compare_sizes_of_static_caches, in_parts
from regard.auditing.reach import is_attention, measure_reach
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject

_PROJECTIONS = {
    "keys": ("k", "key", "k_proj", "key_proj", "wk", "to_k", "k_lin", "key_projection"),
    "values": ("v", "value", "v_proj", "value_proj", "wv", "to_v", "v_lin", "value_projection"),
}
"""Names of the projections of a layer to keys and values."""


def explain_cache(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    """The cause by experiments: give the positions, shift them, read other parts, and look which keys are read."""
    comparison = outcome.comparison
    length, rows = subject.stream.length, [Row(subject.text(1))]
    whole = subject.call(rows)

    def holds(base: Call, other: Call, row: int = 0) -> bool:
        pair = Comparison(Span(base, row), Span(other, row), length, "")
        return not compare_all(subject, [pair], noise).is_leak

    if (
        "static cache" in outcome.change
        and compare_all(subject, compare_sizes_of_static_caches(subject), noise).is_leak
    ):
        return "empty places of the static cache are read: outputs depend on its size"
    if "reordered" in outcome.change:
        unmoved = find_unmoved(subject, outcome)
        if unmoved:
            return f"the rows of {unmoved} are not reordered"
    limited = _find_limit(subject, module, outcome, noise)
    if limited:
        return limited
    singles, parts = (5, *(1 for _ in range(length - 5))), (5, length - 5)
    by_singles = holds(whole, in_parts(subject, rows, singles))
    if outcome.change.endswith("without positions") and by_singles:
        shift = _find_shift(subject, outcome, noise)
        return shift or "positions start again with each part: with position_ids of the whole text the outputs agree"
    if comparison is not None and module is not None and "reordered" not in outcome.change:
        cause = _compare_keys(subject, module, comparison, noise)
        if cause:
            return cause
    shift = _find_shift(subject, outcome, noise)
    if shift:
        return shift
    by_parts = holds(whole, in_parts(subject, rows, parts))
    if by_singles and not by_parts:
        return _describe_parts(module)
    if by_parts and not by_singles:
        return "a part of several tokens agrees, and parts of one token do not"
    if by_singles and by_parts and "cropped" not in outcome.change and "reordered" not in outcome.change:
        return "two parts agree, and more do not: what is stored after the first is changed by the next ones"
    return ""


def _find_limit(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    """Whether outputs agree without the limits of time steps that a state space model has; in words, else ""."""
    limit = getattr(module, "time_step_limit", None)
    if outcome.comparison is None or limit is None or subject.module is None:
        return ""
    limited = [part for part in subject.module.modules() if hasattr(part, "time_step_limit")]
    before = [part.time_step_limit for part in limited]
    try:
        for part in limited:
            part.time_step_limit = (0.0, math.inf)  # type: ignore[assignment]
        is_gone = not compare_all(subject, [outcome.comparison], noise).is_leak
    finally:
        for part, value in zip(limited, before, strict=True):
            part.time_step_limit = value
    minimum = limit[0] if isinstance(limit, tuple | list) else limit
    return f"time steps are at least {minimum:g} in parts of several tokens, and not in single ones" if is_gone else ""


def _describe_parts(module: nn.Module | None) -> str:
    why = (
        "its mask is aligned with the first key"
        if module is not None and is_attention(module)
        else "the state before a part is not read"
    )
    return f"parts of one token agree, and parts of several do not: {why}"


def _find_shift(subject: Subject, outcome: Outcome, noise: NoiseFloor) -> str:
    """By how much the positions of later parts are off, if that is all; else ""."""
    comparison = outcome.comparison
    if comparison is None or not subject.positions or len(comparison.other.call.steps) < 2 or comparison.other.start:
        return ""
    first, length = comparison.other.call.steps[0].length, comparison.count
    for shift in (-1, 1, -2, 2):
        places = torch.arange(length) + shift * (torch.arange(length) >= first)
        (step,) = comparison.base.call.steps
        arguments = {**step.arguments, subject.positions: places[None].expand(comparison.base.call.batch, -1)}
        shifted = replace(comparison.base.call, steps=(replace(step, arguments=arguments),))
        pair = replace(comparison, base=replace(comparison.base, call=shifted))
        if not compare_all(subject, [pair], noise).is_leak:
            return f"the positions of tokens behind the first part are off by {shift}"
    return ""


# the keys that a layer reads


def _compare_keys(subject: Subject, module: nn.Module, comparison: Comparison, noise: NoiseFloor) -> str:
    """The keys, or values, that a layer reads with the cache and not without it, or the other way round."""
    children, threshold = dict(module.named_children()), noise.threshold(1.0)
    cause = _describe_difference(*_reads(subject, module, comparison, threshold), comparison, "the keys and values")
    by_word = {
        word: _describe_difference(
            *_reads(subject, module, comparison, threshold, children[name]), comparison, f"the {word}"
        )
        for word, names in _PROJECTIONS.items()
        for name in names
        if name in children
    }
    single = [of_word for of_word in by_word.values() if of_word]
    cause = single[0] if len(single) == 1 and len(by_word) > 1 else cause
    values = next((children[name] for name in _PROJECTIONS["values"] if name in children), None)
    if not cause and values is not None and _is_in_another_order(subject, module, values, comparison):
        return "keys and values are not in the same order in the cache"
    return cause


def _is_in_another_order(subject: Subject, module: nn.Module, values: nn.Module, comparison: Comparison) -> bool:
    """Whether outputs read the values by the weights of other tokens.

    The same numbers are added to the value of each token in turn, so the changes of an output are its weights. With the
    cache and without it they are the same numbers, for other tokens.
    """
    rows, first = [], comparison.other.call.steps[0].length
    for span in (comparison.base, comparison.other):
        call = repeat_row(span.call, span.row, span.call.length + 1)
        weights = measure_reach(subject, module, changed=values, call=call, alike=True)
        if weights is None or span.start:
            return False
        rows.append(weights[first:] / weights[first:].amax(1, keepdim=True))
    whole, cached = rows
    same_weights = torch.allclose(whole.sort(1).values, cached.sort(1).values, atol=1e-6)
    return same_weights and not torch.allclose(whole, cached, atol=1e-6)


def _reads(
    subject: Subject, module: nn.Module, comparison: Comparison, threshold: float, changed: nn.Module | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Which outputs of a layer depend on which tokens: in the whole text, and with the cache."""
    found = []
    for span in (comparison.base, comparison.other):
        call = repeat_row(span.call, span.row, span.call.length + 1)
        reach = measure_reach(subject, module, changed=changed, call=call)
        found.append(None if reach is None else reach > threshold)
    return found[0], found[1]


def repeat_row(call: Call, row: int, count: int) -> Call:
    """A call with one of its rows in all of ``count`` rows."""

    def repeat(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim() or value.shape[0] != call.batch:
            return value
        return value[row : row + 1].expand(count, *value.shape[1:])

    steps = (
        replace(step, arguments={name: repeat(value) for name, value in step.arguments.items()}) for step in call.steps
    )
    return replace(call, steps=tuple(steps), batch=count)


def _describe_difference(whole: Tensor | None, cached: Tensor | None, comparison: Comparison, words: str) -> str:
    if whole is None or cached is None:
        return ""
    shift, start = comparison.other.start - comparison.base.start, comparison.base.start
    behind = cached[comparison.other.start :]
    if shift and bool(behind[:, start : start + shift].any()):
        tokens = "hidden tokens" if start == 0 else "tokens that were cut off"
        return f"{words} of {tokens} are still read from the cache"
    same = [*range(start), *range(comparison.other.start, len(cached))]
    cached = cached[same][:, same]
    size = min(len(whole), len(cached))
    first = comparison.other.call.steps[0].length - shift
    lost, extra = (whole & ~cached)[first:size, :size], (cached & ~whole)[first:size, :size]
    starts = _starts([step.length for step in comparison.other.call.steps], shift)[first:size]
    return _describe_lost(lost, whole[first:size, :size], starts, words) or _describe_extra(extra, words, first)


def _starts(lengths: Sequence[int], shift: int) -> list[int]:
    """The number of tokens before the part of each token."""
    starts, before = [], 0
    for number, length in enumerate(lengths):
        length -= shift if number == 0 else 0
        starts += [before] * length
        before += length
    return starts


def _describe_lost(lost: Tensor, reads: Tensor, starts: Sequence[int], words: str) -> str:
    """Keys that are read in the whole text, and not with the cache; row i is the output ``first`` + i."""
    pairs = [(int(row), int(column)) for row, column in lost.nonzero()]
    if not pairs:
        return ""
    past = torch.arange(reads.shape[1]) < torch.tensor(starts)[:, None]
    kept = reads & ~lost
    in_part = torch.tensor([len(reads[0]) - len(reads) + row - start for row, start in enumerate(starts)])
    if bool((kept & past).any()) and torch.equal(
        kept & past, reads & past & (torch.arange(reads.shape[1]) <= in_part[:, None])
    ):
        return "the mask is aligned with the first key of the cache, and not with the last one"
    if torch.equal(lost & past, reads & past):
        return f"{words} in the cache are not read"
    if all(column == 0 for _, column in pairs):
        return f"{words} of the first token are lost in the cache"
    if all(column == starts[row] - 1 for row, column in pairs):
        return f"{words} of the last token in the cache are lost"
    if all(column >= starts[0] for _, column in pairs):
        return f"{words} of tokens behind the first part are not stored"
    ages = [len(reads[0]) - len(reads) + row - column for row, column in pairs]
    oldest = max(len(reads[0]) - len(reads) + int(row) - int(column) for row, column in kept.nonzero())
    if oldest < min(ages) + 1:
        return f"the cache keeps {words} of {oldest + 1} tokens, and older ones are read without it"
    return f"some of {words} are lost in the cache"


def _describe_extra(extra: Tensor, words: str, first: int) -> str:
    """Keys that are read with the cache, and not in the whole text."""
    pairs = [(first + int(row), int(column)) for row, column in extra.nonzero()]
    if not pairs:
        return ""
    if any(column > row for row, column in pairs):
        return "with a cache, tokens read later ones of their part: the mask is aligned with the first key"
    farthest = max(row - column for row, column in pairs)
    return f"with a cache, {words} of {farthest + 1} tokens are read: the window is not cut off, or cut off too late"

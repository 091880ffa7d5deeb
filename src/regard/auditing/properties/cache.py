"""A text that is read in parts with a cache has the outputs of the whole text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.auditing.calls import Call, Comparison, Span, Step
from regard.auditing.properties.padding import has_no_prefix
from regard.auditing.properties.property import Property, first_reason
from regard.auditing.subject import Row, Subject, Text
from regard.errors import RefusedError

PARTS = (5, 3)
"""Tokens of the first parts in which a text is read; the others have one token each."""


def has_cache(subject: Subject) -> str | None:
    """Why a subject has no cache that can be tried."""
    if not subject.cache:
        return "the model has no argument that passes on a cache"
    if not subject.causal:
        return "the model is not causal, so its outputs change with each token"
    if subject.stream.length < max(8, subject.prefix + 4):
        return "the text is shorter than 8 tokens, or hardly longer than its prefix"
    return None


def _is_of_transformers(subject: Subject) -> str | None:
    is_shared = subject.cache == "past_key_values" and subject.family == "transformers"
    return None if is_shared else "the cache is the model's own"


def _one_sequence(subject: Subject) -> str | None:
    return None if len(subject.streams) == 1 else "tried for models that read one sequence"


def in_parts(
    subject: Subject,
    rows: Sequence[Row],
    parts: Sequence[int],
    *,
    first: dict[str, Any] | None = None,
    given: Callable[[int, int], dict[str, Any]] | None = None,
) -> Call:
    """A call that reads the rows in parts, and passes on the cache.

    ``first`` are arguments of the first step, such as an empty cache; ``given`` makes arguments of each step from its
    first token and the one behind its last. Without it they are those that ``generate`` passes: places, and a mask of
    all tokens so far.
    """
    if given is None:
        given = _make_usual(subject, torch.ones(len(rows), sum(parts), dtype=torch.bool))
    stream = subject.stream
    text = stream.stack([row.text for row in rows])
    steps, start = [], 0
    for number, part in enumerate(parts):
        end = start + part
        cut = stream.cut(text, start, end)
        arguments = dict(subject.call([Row(stream.cut(row.text, start, end)) for row in rows]).steps[0].arguments)
        if "use_cache" in subject.takes:
            arguments["use_cache"] = True
        arguments |= {**cut, **given(start, end), **((first or {}) if number == 0 else {})}
        steps.append(Step(arguments, part))
        start = end
    return Call(tuple(steps), len(rows))


def _make_usual(subject: Subject, visible: Tensor) -> Callable[[int, int], dict[str, Any]]:
    """Arguments of a step as ``generate`` of transformers passes them, for tokens (batch, length) that are visible.

    A cache of keys and values comes with the mask of all tokens so far; a state comes with none after the first step.
    """
    hides = bool((~visible).any())

    def given(start: int, end: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if subject.family == "regard":  # its states count places, and know the padding of prompts
            return arguments
        if subject.positions:
            arguments[subject.positions] = (visible.long().cumsum(-1) - 1).clamp(min=0)[:, start:end]
        is_read = subject.stream.mask and (hides or subject.family == "transformers")
        if is_read and (subject.cache == "past_key_values" or start == 0):
            arguments[subject.stream.mask] = subject.stream.make_mask(visible[:, :end])
        return arguments

    return given


def _split(subject: Subject, first: int, *others: int) -> tuple[int, ...]:
    """Lengths of parts: the first has the whole prefix at least, and the tokens behind the others are read alone."""
    parts = (max(first, subject.prefix), *others)
    return (*parts, *(1 for _ in range(subject.stream.length - sum(parts))))


def compare_parts(subject: Subject) -> Sequence[Comparison]:
    """Two texts, in parts of several tokens and of one, against the whole."""
    return _in_two_ways(subject, None)


def _compare_without_places(subject: Subject) -> Sequence[Comparison]:
    """The same without places and mask: the model counts the tokens in its cache."""
    return _in_two_ways(subject, lambda start, end: {})


def _in_two_ways(subject: Subject, given: Callable[[int, int], dict[str, Any]] | None) -> Sequence[Comparison]:
    rows = [Row(subject.text(1)), Row(subject.text(2))]
    length = subject.stream.length
    whole, parts, tokens = (
        subject.call(rows),
        in_parts(subject, rows, _split(subject, *PARTS), given=given),
        in_parts(subject, rows, _split(subject, 4), given=given),
    )
    return [
        Comparison(
            Span(whole, row),
            Span(call, row),
            length,
            f"the text was read {words}{'' if given is None else ', without positions'}",
        )
        for row in range(2)
        for call, words in (
            (tokens, "token by token, with a cache"),
            (parts, "in parts of 5, 3 and 1 tokens, with a cache"),
        )
    ]


def _with_class(subject: Subject, rows: Sequence[Row], make: Callable[[Any, int], Any], spare: int = 4) -> Call:
    """Rows in parts, with a cache that ``make`` makes from a config and a number of tokens, some of them to spare."""

    # A call may be run again to find the module, so each run needs an empty cache: the first step makes it.
    def make_empty() -> Any:
        from transformers import DynamicCache, EncoderDecoderCache

        cache = make(subject.config.get_text_config(decoder=True), subject.stream.length + spare)
        return EncoderDecoderCache(cache, DynamicCache()) if len(subject.streams) > 1 else cache

    return in_parts(subject, rows, _split(subject, *PARTS), first={"past_key_values": make_empty})


def compare_sizes_of_static_caches(subject: Subject) -> Sequence[Comparison]:
    """A text in parts, with static caches of two sizes."""
    rows = [Row(subject.text(1)), Row(subject.text(2))]
    calls = [_with_class(subject, rows, _make_static, spare) for spare in (4, 9)]
    return [Comparison(Span(calls[0]), Span(calls[1]), subject.stream.length, "the static cache was larger")]


def _compare_class(make: Callable[[Any, int], Any], words: str) -> Callable[[Subject], Sequence[Comparison]]:
    """Comparisons with a class of caches of ``transformers``."""

    def compare(subject: Subject) -> Sequence[Comparison]:
        rows = [Row(subject.text(1)), Row(subject.text(2))]
        length = subject.stream.length
        parts = _with_class(subject, rows, make)
        whole = subject.call(rows)
        change = f"the text was read in parts, with {words}"
        return [Comparison(Span(whole, row), Span(parts, row), length, change) for row in range(2)]

    return compare


def _make_static(config: Any, tokens: int) -> Any:
    from transformers import StaticCache

    return StaticCache(config, tokens)


def _make_plain(config: Any, tokens: int) -> Any:
    from transformers import DynamicCache

    del config, tokens
    return DynamicCache()


def _make_offloaded(config: Any, tokens: int) -> Any:
    from transformers import DynamicCache

    del tokens
    return DynamicCache(config=config, offloading=True)


def _make_quantized(config: Any, tokens: int) -> Any:
    """A cache of 8-bit floating point, which an audit in float64 does not round: its other backends do."""
    from transformers import QuantizedCache

    del tokens
    return QuantizedCache("fp8", config)


def _has_no_rounding(subject: Subject) -> str | None:
    return None if subject.precision == "float64" else "the model was not run in float64, so the cache rounds"


def _compare_reordered(subject: Subject) -> Sequence[Comparison]:
    """Two texts with the same continuation change their rows after some tokens, as beams do."""
    stream, length, start = subject.stream, subject.stream.length, max(6, subject.prefix)
    first, second = subject.text(1), subject.text(2)
    swapped: list[Text] = [
        stream.join([stream.cut(first, 0, start), stream.cut(second, start, length)]),
        stream.join([stream.cut(second, 0, start), stream.cut(first, start, length)]),
    ]
    call = in_parts(subject, [Row(text) for text in swapped], (start, length - start))

    def reorder(cache: Any) -> Any:
        if hasattr(cache, "reordered"):
            return cache.reordered(torch.tensor([1, 0]))
        reordered = cache.reorder_cache(torch.tensor([1, 0]))
        return cache if reordered is None else reordered

    call = _with_change(call, 1, reorder)
    whole = subject.call([Row(second), Row(first)])
    return [
        Comparison(
            Span(whole, row, start), Span(call, row, start), length - start, "the rows of the cache were reordered"
        )
        for row in range(2)
    ]


def _compare_cropped(subject: Subject) -> Sequence[Comparison]:
    """A text whose last 3 tokens are cut off the cache, and others follow."""
    stream, length, start = subject.stream, subject.stream.length, max(5, subject.prefix)
    text, other = subject.text(1), subject.text(2)
    read = stream.join(
        [stream.cut(text, 0, start), stream.cut(other, start, start + 3), stream.cut(text, start, length)]
    )
    parts = (start, 3, length - start)
    if subject.family == "regard":
        call = _go_back(in_parts(subject, [Row(read)], parts))
        change = "other tokens were read from a state, and then those that follow from the same state"
    else:
        call = _crop_last(in_parts(subject, [Row(read)], parts, given=lambda start, end: {}), start)
        change = "the cache was cropped"
    whole = subject.call([Row(text)])
    return [Comparison(Span(whole, 0, start), Span(call, 0, start + 3), length - start, change)]


def _crop_last(call: Call, start: int) -> Call:
    """A call of three steps whose second part is cut off its cache, behind ``start`` tokens."""

    def record(cache: Any) -> Any:
        if hasattr(cache, "activate_past_recording"):  # states of constant size keep earlier ones only if told so
            cache.activate_past_recording()
        return cache

    def crop(cache: Any) -> Any:
        if getattr(cache, "is_croppable", True) is False:
            raise RefusedError(
                "the cache says that it cannot be cropped (`is_croppable`)",
                expected="a cache of keys and values, or of states that are recorded",
                got=type(cache).__name__,
                do="read the text again",
            )
        cache.crop(-3 if _crops_by_removal(cache) else start)
        return cache

    return _with_change(_with_change(call, 1, record), 2, crop)


def _go_back(call: Call) -> Call:
    """A call of three steps whose last one goes on with the state behind the first."""
    states = []

    def keep(state: Any) -> Any:
        states.append(state)
        return state

    return _with_change(_with_change(call, 1, keep), 2, lambda state: states[-1])


def _crops_by_removal(cache: Any) -> bool:
    """Whether ``crop`` takes the number of tokens to remove; before transformers 5.20 it was that of tokens to keep."""
    return "tokens_to_remove" in inspect.signature(cache.crop).parameters


def _with_change(call: Call, number: int, change: Callable[[Any], Any]) -> Call:
    steps = list(call.steps)
    steps[number] = replace(steps[number], change_cache=change)
    return replace(call, steps=tuple(steps))


def _compare_padded(subject: Subject) -> Sequence[Comparison]:
    """Two texts, one of them with 3 hidden tokens on the left, as ``generate`` reads them."""
    stream, length = subject.stream, subject.stream.length
    text, other = subject.text(1), subject.text(2, length + 3)
    if subject.family == "regard":
        return _compare_prompts(subject, text, other)
    row = stream.join([stream.padding(3, 40, stream.pads[0]), text])
    visible = torch.ones(2, length + 3, dtype=torch.bool)
    visible[0, :3] = False

    given = _make_usual(subject, visible)
    call = in_parts(subject, [Row(row), Row(other)], (7, *(1 for _ in range(length - 4))), given=given)
    alone = subject.call([Row(text)])
    change = "3 hidden tokens on the left, and a cache"
    return [Comparison(Span(alone), Span(call, 0, 3), length, change)]


def _compare_prompts(subject: Subject, text: Text, other: Text) -> Sequence[Comparison]:
    """Two prompts of different lengths, padded on the right for ``prefill``, and the tokens behind them one by one."""
    stream, length = subject.stream, subject.stream.length
    prompt = stream.join([stream.cut(text, 0, 4), stream.padding(3, 40, stream.pads[0])])
    rows = [stream.join([prompt, stream.cut(text, 4, length)]), other]
    call = in_parts(subject, [Row(row) for row in rows], (7, *(1 for _ in range(length - 4))))
    steps = list(call.steps)
    steps[0] = Step({**steps[0].arguments, "lengths": torch.tensor([4, 7])}, 1)
    call = replace(call, steps=tuple(steps))
    change = "prompts of 4 and 7 tokens were read together, and continued"
    return [
        Comparison(Span(subject.call([Row(alone)]), 0, first), Span(call, row), length - 3, change)
        for row, (alone, first) in enumerate(((text, 3), (other, 6)))
    ]


def _pads_prompts(subject: Subject) -> str | None:
    is_apart = subject.family == "regard" and getattr(subject.module, "depends_on_length", False)
    return "prompts of each length are read apart (`depends_on_length`)" if is_apart else None


def _has_places(subject: Subject) -> str | None:
    return 'the state counts places itself: see "cache"' if subject.family == "regard" else None


def _takes_mask(subject: Subject) -> str | None:
    return None if subject.stream.mask else "the model has no argument that hides tokens"


CACHE = (
    Property("cache", "a text read in parts with a cache has the outputs of the whole text", has_cache, compare_parts),
    Property(
        "cache without positions",
        "the same without position_ids and mask: places follow from the cache",
        first_reason(has_cache, _one_sequence, _has_places),
        _compare_without_places,
    ),
    Property(
        "static cache",
        "a text read in parts with a static cache has the outputs of the whole text",
        first_reason(has_cache, _is_of_transformers),
        _compare_class(_make_static, "a static cache"),
    ),
    Property(
        "dynamic cache",
        "a text read in parts with a dynamic cache that was made without a config has the outputs of the whole text",
        first_reason(has_cache, _is_of_transformers),
        _compare_class(_make_plain, "a dynamic cache without a config"),
    ),
    Property(
        "offloaded cache",
        "a text read in parts with an offloaded cache has the outputs of the whole text",
        first_reason(has_cache, _is_of_transformers, _one_sequence),
        _compare_class(_make_offloaded, "an offloaded cache"),
    ),
    Property(
        "quantized cache",
        "a text read in parts with a quantized cache has the outputs of the whole text, but for its rounding",
        first_reason(has_cache, _is_of_transformers, _has_no_rounding),
        _compare_class(_make_quantized, "a quantized cache"),
    ),
    Property(
        "cache reordered",
        "a cache whose rows are reordered, as for beams, continues the texts of its rows",
        has_cache,
        _compare_reordered,
    ),
    Property(
        "cache cropped",
        "a cache whose last tokens are cut off continues the text that is left",
        first_reason(has_cache, _one_sequence),
        _compare_cropped,
    ),
    Property(
        "cache with padding left",
        "a text padded on the left and read with a cache has the outputs that it has alone",
        first_reason(has_cache, _one_sequence, _takes_mask, has_no_prefix, _pads_prompts),
        _compare_padded,
    ),
)

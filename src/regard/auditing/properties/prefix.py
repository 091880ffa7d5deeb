"""A prefix, or another part of a text, whose tokens see one another; the rest is causal.

    output i may depend on token j   if   j <= i, or i and j are in one part

A part holds if nothing else has an influence, so that a later token reaches no output of the part, and if each of its
outputs depends on each of its tokens. Attention layers are measured alone as well (``regard.auditing.reach``), since
what one layer does not see may arrive through another.

The first ``prefix`` tokens are such a part in every call of a model that says so. Others are told of parts in a call:
by ``token_type_ids``, or by a mask of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from regard.auditing.calls import Comparison, Span
from regard.auditing.compare import Outcome, compare_all
from regard.auditing.declared_mask import declared_mask
from regard.auditing.influence import measure_changes, replacements
from regard.auditing.properties.property import Property, first_reason
from regard.auditing.reach import is_attention, measure_reach, reads_own_keys
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Subject

LENGTH = 5
"""Tokens of a prefix that is told in a call."""


@final
@dataclass(frozen=True)
class TokenTypes:
    """How a type of ``transformers`` is told of a part: the argument, and its values inside and outside of parts."""

    argument: str
    inside: int
    outside: int
    several: bool
    """Whether a text has several parts, such as pictures; else it has a prefix."""
    switch: tuple[str, Any] = ("", None)
    """The field of the config that turns parts on, and its value."""


TOKEN_TYPES = {
    "gemma3": TokenTypes("token_type_ids", 1, 0, several=True),
    "gemma4": TokenTypes("mm_token_type_ids", 1, 0, True, ("use_bidirectional_attention", "vision")),
    "gemma4_unified": TokenTypes("mm_token_type_ids", 1, 0, True, ("use_bidirectional_attention", "vision")),
    "hrm_text": TokenTypes("token_type_ids", 1, 0, several=False, switch=("prefix_lm", True)),
    "paligemma": TokenTypes("token_type_ids", 0, 1, several=False),
}


def _has_prefix(subject: Subject) -> str | None:
    return None if subject.prefix else "the model declares no prefix: say so with `prefix=5`, its number of tokens"


def _has_token_types(subject: Subject) -> str | None:
    types = TOKEN_TYPES.get(getattr(subject.config, "model_type", ""))
    if subject.family != "transformers" or types is None:
        return "the model is of no type that is told of parts by token types"
    name, value = types.switch
    config = subject.config.get_text_config()
    return f"its config turns parts off: {name} is not {value!r}" if name and getattr(config, name) != value else None


def _takes_mask_of_cells(subject: Subject) -> str | None:
    if len(subject.streams) > 1 or subject.stream.fixed or not subject.stream.dims:
        return "tried for models that read one text"
    if subject.family == "transformers" and subject.causal:
        return None if subject.accepts("attention_mask") else "the model does not take attention_mask"
    if subject.family == "regard" and "mask" in subject.takes:
        return "its mask is beside a causal one, and shows nothing more" if subject.causal else None
    return "the model takes no mask that says who sees whom"


def _is_long_enough(subject: Subject) -> str | None:
    enough = subject.stream.length >= 2 * LENGTH
    return None if enough else f"the text is shorter than {2 * LENGTH} tokens"


def _declared_prefix(subject: Subject) -> tuple[Sequence[range], Mapping[str, Any]]:
    return (range(subject.prefix),), {}


def _by_token_types(subject: Subject) -> tuple[Sequence[range], Mapping[str, Any]]:
    types = TOKEN_TYPES[subject.config.model_type]
    parts = (range(1, 4), range(6, 9)) if types.several else (range(LENGTH),)
    inside = torch.full((1, subject.stream.length), types.outside)
    for part in parts:
        inside[:, part.start : part.stop] = types.inside
    return parts, {types.argument: inside}


def _by_mask(subject: Subject) -> tuple[Sequence[range], Mapping[str, Any]]:
    parts = (range(LENGTH),)
    keep = declared_mask(subject.stream.length, parts)
    if subject.family == "regard":
        from regard import masks

        return parts, {"mask": masks.keep(keep)}
    additive = torch.zeros(keep.shape, dtype=getattr(torch, subject.precision))
    return parts, {"attention_mask": additive.masked_fill(~keep, torch.finfo(torch.float32).min)[None, None]}


def _measure(
    find_parts: Callable[[Subject], tuple[Sequence[range], Mapping[str, Any]]],
) -> Callable[[Subject, NoiseFloor], Sequence[Outcome]]:
    def measure(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
        parts, arguments = find_parts(subject)
        call = replacements(subject, **arguments)
        length, threshold = subject.stream.length, noise.threshold(1.0)
        first_outputs = {token: part.start for part in parts for token in part}
        pairs = [
            Comparison(Span(call, 0), Span(call, token + 1), count, f"token {token} was replaced", token)
            for token in range(length)
            if (count := first_outputs.get(token, token))
        ]
        changes = measure_changes(subject, call)
        if changes is None:
            raise RuntimeError("outputs do not belong to tokens")
        blind = _find_blind(changes, parts, threshold) or _find_blind_module(subject, parts, arguments, threshold)
        return [*([] if blind is None else [blind]), compare_all(subject, pairs, noise)]

    return measure


def _inside(changes: Tensor, part: range) -> Tensor:
    return changes[part.start : part.stop, part.start : part.stop]


def _find_blind(changes: Tensor, parts: Sequence[range], threshold: float, module: str | None = None) -> Outcome | None:
    """An output of a part that does not depend on each token of it; None if all do."""
    for part in parts:
        reads = _inside(changes, part) > threshold
        if bool(reads.all()):
            continue
        output, token = (int(place) + part.start for place in (~reads).nonzero()[-1])
        hidden = [part.start + number for number, column in enumerate(reads.T) if not bool(column.all())]
        if bool(reads.triu(1).any()):
            cause = f"the part is not seen whole: token {hidden[-1]} is hidden from some of its tokens"
        else:
            cause = f"tokens {part.start} to {part.stop - 1} do not see one another: the part is causal"
        change = f"token {token} was replaced, and output {output} of its part stayed the same"
        return Outcome(float("inf"), threshold, change, output, token, module=module, cause=cause)
    return None


def _find_blind_module(
    subject: Subject, parts: Sequence[range], arguments: Mapping[str, Any], threshold: float
) -> Outcome | None:
    """The first attention layer that does not see a part whole, if it or others of its kind read ahead in a part."""
    if subject.module is None:
        return None
    found: dict[Hashable, list[Outcome | None]] = {}
    read_ahead = set()
    for name, module in subject.module.named_modules():
        reach = measure_reach(subject, module, arguments=arguments) if name and is_attention(module) else None
        if reach is None or not reads_own_keys(reach, threshold):
            continue
        # Layers of one class may differ: in Gemma 4 only those with windows see pictures whole.
        kind = (type(module), getattr(module, "is_sliding", None), getattr(module, "layer_type", None))
        found.setdefault(kind, []).append(_find_blind(reach, parts, threshold, name))
        if any(bool((_inside(reach, part) > threshold).triu(1).any()) for part in parts):
            read_ahead.add(kind)
    blind = (outcome for kind in found if kind in read_ahead for outcome in found[kind])
    return next((outcome for outcome in blind if outcome is not None), None)


PREFIX = (
    Property(
        "prefix",
        "the tokens of a declared prefix see one another, and nothing behind them",
        first_reason(_has_prefix, _is_long_enough),
        measure=_measure(_declared_prefix),
    ),
    Property(
        "prefix by token types",
        "the tokens of a part that token types name see one another, and nothing behind them",
        first_reason(_has_token_types, _is_long_enough),
        measure=_measure(_by_token_types),
    ),
    Property(
        "prefix by mask",
        "the tokens of a prefix that a mask shows whole see one another, and nothing behind them",
        first_reason(_takes_mask_of_cells, _is_long_enough),
        measure=_measure(_by_mask),
    ),
)

"""Texts that are packed into one row have no influence on one another, in each convention that is in use.

Conventions of ``transformers`` are arguments of a decoder. Models of regard have one: ``mask=masks.documents(ids)``,
with ``positions`` that start again where positions are learned.

Two texts, one after the other, and the outputs of the second as alone. A model that takes the arguments of a convention
and reads none of them mixes the texts without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.compare import compare_all
from regard.auditing.properties.padding import has_no_prefix
from regard.auditing.properties.property import Property, first_reason
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject

LENGTHS = (5, 7)
"""Tokens of the two texts."""


def _packs(subject: Subject) -> str | None:
    if subject.prefix:
        return has_no_prefix(subject)
    if subject.stream.fixed:
        return subject.stream.fixed
    if subject.family != "transformers":
        return "conventions for packed texts are those of transformers"
    if not subject.causal:
        return "only decoders are trained on packed texts by these conventions"
    return None if len(subject.streams) == 1 else "the model reads two sequences"


def _takes(*names: str) -> Callable[[Subject], str | None]:
    def check(subject: Subject) -> str | None:
        missing = [name for name in names if not subject.accepts(name)]
        return f"the model does not take {missing[0]}" if missing else None

    return check


def _packs_documents(subject: Subject) -> str | None:
    if subject.family != "regard":
        return "masks.documents is of regard's own models"
    if len(subject.streams) > 1 or "mask" not in subject.takes:
        return "the model reads two sequences, or takes no mask"
    if not getattr(subject.module, "reads_packed", True):
        return "the model says that texts share no row (`reads_packed`), and reads them apart"
    if not subject.positions and getattr(subject.module, "has_absolute_positions", False):
        return "the model learns positions, and has no argument by which they start again"
    return None


def _positions() -> Tensor:
    return torch.cat([torch.arange(length) for length in LENGTHS])[None]


def _by_positions(subject: Subject) -> dict[str, Any]:
    del subject
    return {"position_ids": _positions()}


def _beside_ones(subject: Subject) -> dict[str, Any]:
    return {**_by_positions(subject), "attention_mask": torch.ones(1, sum(LENGTHS), dtype=torch.long)}


def _by_lengths(subject: Subject) -> dict[str, Any]:
    ends = torch.tensor([0, LENGTHS[0], sum(LENGTHS)], dtype=torch.int32)
    longest = max(LENGTHS)
    return {
        **_by_positions(subject),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _by_index(subject: Subject) -> dict[str, Any]:
    return {**_by_positions(subject), "seq_idx": _numbers()}


def _numbers() -> Tensor:
    """The number of the text of each token."""
    return torch.repeat_interleave(torch.arange(2, dtype=torch.int32), torch.tensor(LENGTHS))[None]


def _by_documents(subject: Subject) -> dict[str, Any]:
    from regard import masks

    positions = {subject.positions: _positions()} if subject.positions else {}
    return {**positions, "mask": masks.documents(_numbers())}


def _by_blocks(subject: Subject) -> dict[str, Any]:
    return {**_by_positions(subject), "attention_mask": _block_mask(subject, LENGTHS)}


def _block_mask(subject: Subject, lengths: Sequence[int]) -> Tensor:
    """An additive mask of causal blocks, one for each text."""
    number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    keep = (number[:, None] == number).tril()
    additive = torch.zeros(keep.shape, dtype=getattr(torch, subject.precision))
    return additive.masked_fill(~keep, torch.finfo(torch.float32).min)[None, None]


def _comparisons(convention: Callable[[Subject], dict[str, Any]]) -> Callable[[Subject], Sequence[Comparison]]:
    def make(subject: Subject) -> Sequence[Comparison]:
        stream = subject.stream
        first, second = (subject.text(seed, length) for seed, length in enumerate(LENGTHS, 1))
        extra = convention(subject)
        packed = subject.call([Row(stream.join([first, second]))], **extra)
        other = stream.join([subject.text(7, LENGTHS[0]), second])
        exchanged = subject.call([Row(other)], **extra)
        # A mask of 4 dimensions replaces the model's own, windows included, so the text alone has one as well.
        own_mask: dict[str, Any] = (
            {"attention_mask": _block_mask(subject, LENGTHS[1:])} if convention is _by_blocks else {}
        )
        alone = subject.call([Row(second)], **own_mask)
        return [
            Comparison(Span(alone), Span(packed, 0, LENGTHS[0]), LENGTHS[1], "another text was packed before it"),
            Comparison(
                Span(packed, 0, LENGTHS[0]),
                Span(exchanged, 0, LENGTHS[0]),
                LENGTHS[1],
                "the text that is packed before it was replaced",
            ),
        ]

    return make


def leaks_without_ones(subject: Subject, noise: NoiseFloor) -> bool:
    """Whether texts packed by position_ids alone see one another."""
    return compare_all(subject, _comparisons(_by_positions)(subject), noise).is_leak


def reads_no_other_text(subject: Subject, comparison: Comparison | None, noise: NoiseFloor) -> bool:
    """Whether another text before the packed one changes no output, for the call of a comparison."""
    if comparison is None:
        return False
    (step,) = comparison.other.call.steps
    text = {name: step.arguments[name] for name in subject.stream.dims}
    second = subject.stream.cut(text, LENGTHS[0], sum(LENGTHS))
    other = subject.stream.join([subject.text(8, LENGTHS[0]), second])  # none of the texts of the comparisons
    exchanged = Call((replace(step, arguments={**step.arguments, **other}),), 1)
    start = LENGTHS[0]
    pair = Comparison(Span(Call((step,), 1), 0, start), Span(exchanged, 0, start), LENGTHS[1], "")
    return not compare_all(subject, [pair], noise).is_leak


_OF_TRANSFORMERS = (
    ("position_ids", "position_ids that start again", ("position_ids",), _by_positions),
    (
        "position_ids and ones",
        "position_ids that start again, beside a mask of ones",
        ("position_ids", "attention_mask"),
        _beside_ones,
    ),
    ("cu_seq_lens", "cu_seq_lens_q and cu_seq_lens_k", ("position_ids", "cu_seq_lens_q"), _by_lengths),
    ("seq_idx", "seq_idx", ("position_ids", "seq_idx"), _by_index),
    ("block mask", "a mask of blocks, of 4 dimensions", ("position_ids", "attention_mask"), _by_blocks),
)

PACKED = (
    *(
        Property(
            f"packed by {name}",
            f"texts packed into one row by {words} do not see one another",
            first_reason(_packs, _takes(*arguments)),
            _comparisons(convention),
        )
        for name, words, arguments, convention in _OF_TRANSFORMERS
    ),
    Property(
        "packed by documents",
        "texts packed into one row by masks.documents do not see one another",
        _packs_documents,
        _comparisons(_by_documents),
    ),
)

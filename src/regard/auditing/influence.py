"""The measured mask: who influences whom, by one replaced token for each position.

    measured[i][j] = max |f(x with token j replaced)_i - f(x)_i| / max |f(x)|

A model that does not say whether it is causal is taken as causal if later tokens have an influence on clearly fewer
outputs than earlier ones: in a bidirectional model, windows included, both are the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.auditing.calls import Call
from regard.auditing.compare import belongs_to_tokens
from regard.auditing.declared_mask import declared_mask, declared_mask_of
from regard.auditing.noise import changes_from_first
from regard.auditing.results import InfluenceMatrix, NoiseFloor
from regard.auditing.subject import Row, Subject, expand_rows

MAX_LATER = 0.9
"""The share of pairs with a later token that have an influence, divided by that of earlier ones, in a causal model."""


def replacements(subject: Subject, **arguments: Any) -> Call:
    """A call with a text in row 0, and the text with token j replaced in row j + 1.

    Each of the ``arguments`` is for one row, and the same for all.
    """
    text, other = subject.text(1), subject.text(2)
    stream = subject.stream
    rows = [text, *(stream.replace(text, token, other) for token in range(stream.length_of(text)))]
    return subject.call([Row(row) for row in rows], **expand_rows(arguments, len(rows)))


def measure_influence(subject: Subject) -> Tensor | None:
    """Replace each token, and measure each output: (outputs, inputs); None if outputs do not belong to tokens."""
    if not subject.stream.dims:
        return None
    return measure_changes(subject, replacements(subject))


def measure_changes(subject: Subject, call: Call) -> Tensor | None:
    """The changes of the outputs in a call that ``replacements`` made: (outputs, inputs)."""
    outputs = subject.run(call)
    if not belongs_to_tokens(outputs, call):
        return None
    return changes_from_first(outputs)


def compare_with_declared(measured: Tensor, subject: Subject, noise: NoiseFloor) -> InfluenceMatrix:
    """The measured mask beside the one that the subject declares."""
    declared = declared_mask_of(subject, len(measured))
    return InfluenceMatrix(
        tuple(tuple(row) for row in measured.tolist()),
        noise.threshold(1.0),
        None if declared is None else tuple(tuple(row) for row in declared.tolist()),
    )


def infer_causal(measured: Tensor, subject: Subject, noise: NoiseFloor) -> Subject:
    """A subject that does not say whether it is causal, with the answer of its measured mask if there is one."""
    influences = measured > noise.threshold(1.0)
    prefix = _find_prefix(influences)
    if prefix:
        note = f"taken as causal behind a prefix of {prefix} tokens, as measured; say so with `prefix={prefix}`"
        return replace(subject, causal=True, prefix=prefix, notes=(*subject.notes, note))
    later, earlier = int(influences.triu(1).sum()), int(influences.tril(-1).sum())
    if later > MAX_LATER * earlier or earlier == 0:
        return subject
    pairs = influences.numel() // 2 - influences.shape[0] // 2
    note = (
        f"taken as causal: earlier tokens have an influence in {earlier} of {pairs} pairs, later ones in {later}; "
        "if it is not, say so with `causal=False`"
    )
    return replace(subject, causal=True, notes=(*subject.notes, note))


def _find_prefix(influences: Tensor) -> int:
    """The number of first tokens that see one another, if all else is causal; 0 without such a prefix."""
    length = len(influences)
    return next(
        (size for size in range(2, length) if torch.equal(influences, declared_mask(length, (range(size),)))), 0
    )

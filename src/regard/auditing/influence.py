"""The measured mask: who influences whom, by one replaced token for each position.

    measured[i][j] = max |f(x with token j replaced)_i - f(x)_i| / max |f(x)|

A model that does not say whether it is causal is taken as causal if later tokens have an influence on clearly fewer
outputs than earlier ones: in a bidirectional model, windows included, both are the same.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.auditing.calls import Call
from regard.auditing.compare import belongs_to_tokens
from regard.auditing.noise import largest
from regard.auditing.results import InfluenceMatrix, NoiseFloor
from regard.auditing.subject import Row, Subject

MAX_LATER = 0.9
"""The share of pairs with a later token that have an influence, divided by that of earlier ones, in a causal model."""


def replacements(subject: Subject) -> Call:
    """A call with a text in row 0, and the text with token j replaced in row j + 1."""
    text, other = subject.text(1), subject.text(2)
    stream = subject.stream
    rows = [text, *(stream.replace(text, token, other) for token in range(stream.length_of(text)))]
    return subject.call([Row(row) for row in rows])


def measure_influence(subject: Subject) -> Tensor | None:
    """Replace each token, and measure each output: (outputs, inputs); None if outputs do not belong to tokens."""
    if not subject.stream.dims:
        return None
    call = replacements(subject)
    outputs = subject.run(call)
    if not belongs_to_tokens(outputs, call):
        return None
    changes = (outputs[1:] - outputs[:1]).abs().amax(-1).T / (largest(outputs[0]) or 1.0)
    return changes.nan_to_num(nan=float("inf"), posinf=float("inf"))


def compare_with_declared(measured: Tensor, subject: Subject, noise: NoiseFloor) -> InfluenceMatrix:
    """The measured mask beside the one that the subject declares."""
    declared = torch.ones_like(measured, dtype=torch.bool)
    if subject.causal:
        declared = declared.tril()
    return InfluenceMatrix(
        tuple(tuple(row) for row in measured.tolist()),
        noise.threshold(1.0),
        tuple(tuple(row) for row in declared.tolist()) if subject.causal is not None else None,
    )


def infer_causal(measured: Tensor, subject: Subject, noise: NoiseFloor) -> Subject:
    """A subject that does not say whether it is causal, with the answer of its measured mask if there is one."""
    influences = measured > noise.threshold(1.0)
    later, earlier = int(influences.triu(1).sum()), int(influences.tril(-1).sum())
    if later > MAX_LATER * earlier or earlier == 0:
        return subject
    pairs = influences.numel() // 2 - influences.shape[0] // 2
    note = (
        f"taken as causal: earlier tokens have an influence in {earlier} of {pairs} pairs, later ones in {later}; "
        "if it is not, say so with `causal=False`"
    )
    return replace(subject, causal=True, notes=(*subject.notes, note))

"""The measured mask: who influences whom, by one replaced token for each position."""

from __future__ import annotations

import torch

from regard.auditing.calls import Call
from regard.auditing.compare import belongs_to_tokens
from regard.auditing.noise import largest
from regard.auditing.results import InfluenceMatrix, NoiseFloor
from regard.auditing.subject import Row, Subject


def replacements(subject: Subject) -> Call:
    """A call with a text in row 0, and the text with token j replaced in row j + 1."""
    text, other = subject.text(1), subject.text(2)
    stream = subject.stream
    rows = [text, *(stream.replace(text, token, other) for token in range(stream.length_of(text)))]
    return subject.call([Row(row) for row in rows])


def measure_influence(subject: Subject, noise: NoiseFloor) -> InfluenceMatrix | None:
    """Replace each token, and measure each output; None if outputs do not belong to tokens."""
    if not subject.stream.dims:
        return None
    call = replacements(subject)
    outputs = subject.run(call)
    if not belongs_to_tokens(outputs, call):
        return None
    changes = (outputs[1:] - outputs[:1]).abs().amax(-1).T / (largest(outputs[0]) or 1.0)
    changes = changes.nan_to_num(nan=float("inf"), posinf=float("inf"))
    length = changes.shape[0]
    declared = torch.ones(length, length, dtype=torch.bool)
    if subject.causal:
        declared = declared.tril()
    return InfluenceMatrix(
        tuple(tuple(row) for row in changes.tolist()),
        noise.threshold(1.0),
        tuple(tuple(row) for row in declared.tolist()) if subject.causal is not None else None,
    )

"""The noise floor: which differences are rounding, and which are leaks.

Products of matrices round differently in batches of other sizes, and experts gather tokens in another order. So a
difference above 0 is no leak yet. The floor is the largest relative difference between outputs that mean the same:

    repeats       d(f(x), f(x))                    the same call twice
    permutation   d(f(x)[p], f(x[p]))              the rows of a batch in another order
    batch size    d(f([x, x, x]), f([x]))          a row alone, and with copies of itself
    rounding      d(f_w(x), f_w'(x)), w' = w (1 + u eps), |u| <= 1
                                                   all weights, and vectors of the input, changed by half a unit of
                                                   their last digit: how the model amplifies rounding

    d(a, b) = max |a - b| / max |a|,   floor = max(all four, eps)

Permutation and batch size count only if rounding can explain them (below 2^17 eps): else they are leaks themselves.

A property leaks if outputs that should be equal differ by more than ``SAFETY`` times the floor, relative to the largest
of them. The fourth term is about the model and not about one pair of shapes, so that rounding which happens not to
differ in the three others is allowed for; the factor is for rounding that adds up over more tokens. In float64 a floor
is about 1e-15, and leaks are 1e-10 or larger, so the factor decides nothing in practice.

Buffers, such as tables of decays, keep the rounding of the float32 in which the model made them. A difference of up to
``SAFETY`` units of float32 that becomes another one by more than a tenth when all buffers change by half a unit of
float32 is their rounding, too (``compare``): a leak of the same size stays what it is.

Without a floor there is no answer: if two identical calls differ by more than ``MAX_REPEATS``, all properties cannot be
asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from regard.auditing.calls import Call
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject

SAFETY = 64
"""How many times the floor a difference must exceed."""

FLOAT32_EPSILON = 2.0**-23
"""The distance between 1 and the next number in float32, in which models make their buffers."""

MAX_ROUNDING = 2.0**17
"""Differences between batches of other orders and sizes of more units of the last digit are no rounding."""

MAX_REPEATS = 1e-3
"""Identical calls that differ by more, relative to the largest output, make all other differences meaningless."""


def measure_noise(subject: Subject) -> NoiseFloor:
    """Measure the floor of a subject on texts of its example's length."""
    texts = [subject.text(seed) for seed in (1, 2, 3)]
    rows = [Row(text) for text in texts]
    batch = subject.call(rows)
    outputs = subject.run(batch)
    alone = subject.call(rows[:1])
    single = subject.run(alone)
    repeats = max(distance(outputs, subject.run(batch)), distance(single, subject.run(alone)))
    order = [2, 0, 1]
    permuted = subject.run(subject.call([rows[number] for number in order]))
    copies = subject.run(subject.call([rows[0]] * 3))
    with rounded_weights(subject):
        rounding = distance(single, subject.run(_round_vectors(alone, subject)))
    parts = {
        "repeats": repeats,
        "permutation": _if_rounding(distance(outputs[order], permuted), subject),
        "batch_size": _if_rounding(distance(single.expand_as(copies), copies), subject),
        "rounding": rounding,
    }
    return NoiseFloor(
        max(*parts.values(), epsilon(subject)),
        precision=subject.precision,
        is_finite=bool(single.isfinite().all()),
        **parts,
    )


def _if_rounding(gap: float, subject: Subject) -> float:
    """A difference that rounding can explain; where rows influence one another it is a leak, and no noise."""
    return gap if gap < MAX_ROUNDING * epsilon(subject) else 0.0


def epsilon(subject: Subject) -> float:
    """The distance between 1 and the next number in the precision of a subject."""
    return float(torch.finfo(getattr(torch, subject.precision)).eps)


def distance(base: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest number of ``base``; NaN in the same places is equal."""
    scale = largest(base)
    return difference(base, other) / scale if scale else difference(base, other)


def difference(base: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors. A number in place of NaN or infinity is an infinite difference."""
    if base.numel() == 0:
        return 0.0
    equal = (base == other) | (base.isnan() & other.isnan())
    gap = (base.double() - other.double()).abs().masked_fill(equal, 0.0)
    return float(gap.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


def changes_from_first(rows: Tensor) -> Tensor:
    """The largest change of each position (rows) in each row of a batch from the first one (columns), relative to it.

    ``rows`` is (batch, positions, features). What is not finite counts as an infinite change.
    """
    changes = (rows[1:] - rows[:1]).abs().amax(-1).T / (largest(rows[0]) or 1.0)
    return changes.nan_to_num(nan=float("inf"), posinf=float("inf"))


def largest(tensor: Tensor) -> float:
    """The largest finite magnitude."""
    finite = tensor.detach().double().abs()
    finite = finite[finite.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def rounded_weights(subject: Subject) -> AbstractContextManager[None]:
    """A context in which every weight is changed by up to half a unit of its last digit."""
    return _rounded(subject, [] if subject.module is None else subject.module.parameters(), epsilon(subject))


def rounded_buffers(subject: Subject) -> AbstractContextManager[None]:
    """A context in which every buffer is changed by up to half a unit of the last digit of float32."""
    return _rounded(subject, [] if subject.module is None else subject.module.buffers(), FLOAT32_EPSILON)


@contextmanager
def _rounded(subject: Subject, tensors: Iterable[Tensor], unit: float) -> Iterator[None]:
    """Change numbers by up to half a unit of their last digit, and restore them at the end."""
    changed = [tensor for tensor in tensors if tensor.is_floating_point()]
    before = [tensor.detach().clone() for tensor in changed]
    generator = torch.Generator().manual_seed(subject.seed)
    try:
        with torch.no_grad():
            for tensor in changed:
                tensor.mul_(1 + unit * _uniform(tensor, generator))
        yield
    finally:
        with torch.no_grad():
            for tensor, saved in zip(changed, before, strict=True):
                tensor.copy_(saved)


def _uniform(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return (torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1).to(tensor)


def _round_vectors(call: Call, subject: Subject) -> Call:
    """The call with vectors of the input changed by half a unit of their last digit."""
    generator = torch.Generator().manual_seed(subject.seed)
    (step,) = call.steps
    arguments = {
        name: value * (1 + epsilon(subject) * _uniform(value, generator))
        if name in subject.stream.dims and value.is_floating_point()
        else value
        for name, value in step.arguments.items()
    }
    return replace(call, steps=(replace(step, arguments=arguments),))

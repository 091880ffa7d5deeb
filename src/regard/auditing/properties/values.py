"""Hidden tokens may hold anything: 1e30, NaN, infinity; and no gradient reaches them.

A weight of 0 times NaN is NaN, so in a model that multiplies hidden values by weights of 0, as all plain softmax does,
one NaN in padding is NaN everywhere. Those properties are strict: hardly any model has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.compare import Outcome
from regard.auditing.example import find_embedding
from regard.auditing.float64 import Float64Mode
from regard.auditing.noise import largest
from regard.auditing.properties.causal import behind_prefix
from regard.auditing.properties.padding import pad
from regard.auditing.properties.property import Property, first_reason
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject

LARGE = {"1e30": 1e30, "-1e30": -1e30}
NOT_FINITE = {"NaN": math.nan, "infinity": math.inf}


def token_embedding(subject: Subject) -> nn.Module | None:
    """The embedding of the tokens, whose outputs the properties change; None for a model of vectors."""
    if subject.module is None or not subject.stream.pads or len(subject.streams) > 1:
        return None
    text = subject.text(1)
    return find_embedding(subject.module, lambda: subject.run(subject.call([Row(text)])), next(iter(text.values())))


def _has_vectors(subject: Subject) -> str | None:
    if not subject.stream.pads:
        return None
    return None if token_embedding(subject) is not None else "the model has no embedding whose vectors can be changed"


def poison(subject: Subject, call: Call, positions: range, value: float) -> Call:
    """The call with ``value`` in the vectors of some tokens of row 0."""
    embedding = token_embedding(subject)
    if embedding is None:
        (step,) = call.steps
        arguments = dict(step.arguments)
        for name, dim in subject.stream.dims.items():
            vectors = arguments[name].clone()
            vectors.select(subject.stream.batch_dims[name], 0).narrow(
                dim - 1 if dim > subject.stream.batch_dims[name] else dim, positions.start, len(positions)
            ).fill_(value)
            arguments[name] = vectors
        return replace(call, steps=(replace(step, arguments=arguments),))

    def write(vectors: Tensor) -> Tensor:
        vectors = vectors.clone()
        vectors[0, positions.start : positions.stop] = value
        return vectors

    return replace(call, around=lambda: _change_outputs(embedding, write))


def _change_outputs(module: nn.Module, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[Any]:
    """A context in which the vectors (batch, length, width) that a module returns are changed."""

    def hook(part: nn.Module, arguments: Any, result: Any) -> Any:
        del part, arguments
        return change(result) if isinstance(result, Tensor) and result.dim() == 3 else None

    handle: AbstractContextManager[Any] = module.register_forward_hook(hook)
    return handle


def _can_pad(subject: Subject) -> str | None:
    if not subject.stream.mask:
        return f"the model has no argument that hides tokens of {subject.stream.name}"
    return subject.stream.fixed or None


def _is_causal(subject: Subject) -> str | None:
    if not subject.stream.dims:
        return subject.stream.fixed
    return None if subject.causal else "the model is bidirectional, or does not say whether it is causal"


def _in_padding(values: Mapping[str, float]) -> Callable[[Subject], Sequence[Comparison]]:
    return lambda subject: _pad_with(subject, values)


def _pad_with(subject: Subject, values: Mapping[str, float]) -> Sequence[Comparison]:
    stream, length = subject.stream, subject.stream.length
    padded = pad(subject, stream, subject.text(1), "right", stream.padding(3, 40))
    return [
        Comparison(
            Span(padded),
            Span(poison(subject, padded, range(length, length + 3), value)),
            length,
            f"the hidden tokens on the right were {name}",
        )
        for name, value in values.items()
    ]


def _in_later_tokens(values: Mapping[str, float]) -> Callable[[Subject], Sequence[Comparison]]:
    return lambda subject: _continue_with(subject, values)


def _continue_with(subject: Subject, values: Mapping[str, float]) -> Sequence[Comparison]:
    length = subject.stream.length
    call, start = subject.call([Row(subject.text(1))]), max(subject.stream.length // 2, subject.prefix)
    return [
        Comparison(
            Span(call),
            Span(poison(subject, call, range(start, length), value)),
            start,
            f"tokens from {start} on were {name}",
        )
        for name, value in values.items()
    ]


def gradients(subject: Subject, call: Call, visible: range) -> Tensor:
    """The largest gradient of the visible outputs for the vector of each token of row 0: (length,)."""
    leaves: list[Tensor] = []

    def keep(vectors: Tensor) -> Tensor:
        leaf = vectors.detach().clone().requires_grad_()
        leaves.append(leaf)
        return leaf

    embedding = token_embedding(subject)
    if embedding is not None:
        call = replace(call, around=lambda: _change_outputs(embedding, keep))
    else:
        (step,) = call.steps
        arguments = dict(step.arguments)
        for name in subject.stream.dims:
            arguments[name] = keep(arguments[name].double() if subject.precision == "float64" else arguments[name])
        call = replace(call, steps=(replace(step, arguments=arguments),))
    outputs = subject.run(call, gradients=True)[0, visible.start : visible.stop]
    cotangent = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with Float64Mode() if subject.precision == "float64" else nullcontext():
        found = torch.autograd.grad(outputs, leaves, cotangent.to(outputs), allow_unused=True)
    return torch.stack(
        [_by_position(subject, name, gradient) for name, gradient in _pair_with_names(subject, leaves, found)]
    ).amax(0)


def _pair_with_names(
    subject: Subject, leaves: Sequence[Tensor], found: Sequence[Tensor | None]
) -> Iterator[tuple[str, Tensor]]:
    names = list(subject.stream.dims)
    for number, (leaf, gradient) in enumerate(zip(leaves, found, strict=True)):
        yield names[number % len(names)], torch.zeros_like(leaf) if gradient is None else gradient


def _by_position(subject: Subject, name: str, gradient: Tensor) -> Tensor:
    dim = 1 if subject.stream.pads else subject.stream.dims[name]
    return gradient.detach().abs().movedim(dim, 0).flatten(1).amax(1)


def _no_gradient(
    subject: Subject, noise: NoiseFloor, call: Call, visible: range, hidden: range, change: str
) -> Outcome:
    found = gradients(subject, call, visible)
    reached = found[hidden.start : hidden.stop].nan_to_num(nan=math.inf)
    return Outcome(float(reached.max()), noise.threshold(largest(found)), change)


def _causal_gradients(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    length = subject.stream.length
    call = subject.call([Row(subject.text(1))])
    return [
        _no_gradient(
            subject, noise, call, range(end), range(end, length), f"the gradient of outputs before {end} was computed"
        )
        for end in behind_prefix(subject, 1, length // 2, length - 1)
    ]


def _padding_gradients(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    length, stream = subject.stream.length, subject.stream
    call = pad(subject, stream, subject.text(1), "right", stream.padding(3, 40))
    change = "the gradient of outputs was computed for hidden tokens on the right"
    return [_no_gradient(subject, noise, call, range(length), range(length, length + 3), change)]


def _empty_row(subject: Subject) -> Sequence[Comparison]:
    """A text beside a row of hidden tokens alone."""
    stream, length = subject.stream, subject.stream.length
    text = subject.text(1)
    hidden = Row(stream.padding(length, 40), torch.zeros(length, dtype=torch.bool))
    tokens = Row(text, torch.ones(length, dtype=torch.bool))
    call = subject.call([tokens, hidden])
    other = subject.call([tokens, Row(subject.text(2), torch.ones(length, dtype=torch.bool))])
    return [Comparison(Span(other), Span(call), length, "the other row of the batch has hidden tokens alone")]


VALUES_OF_HIDDEN_TOKENS = (
    Property(
        "gradient of later tokens",
        "no gradient reaches a later token",
        first_reason(_has_vectors, _is_causal),
        measure=_causal_gradients,
    ),
    Property(
        "gradient of padding",
        "no gradient reaches padding",
        first_reason(_has_vectors, _can_pad),
        measure=_padding_gradients,
    ),
    Property("empty row", "a row of padding alone changes no other row", _can_pad, _empty_row),
    Property(
        "1e30 in padding",
        "numbers of 1e30 in padding change no output",
        first_reason(_has_vectors, _can_pad),
        _in_padding(LARGE),
    ),
    Property(
        "1e30 in later tokens",
        "numbers of 1e30 in later tokens change no output",
        first_reason(_has_vectors, _is_causal),
        _in_later_tokens(LARGE),
    ),
    Property(
        "NaN in padding",
        "NaN and infinity in padding change no output",
        first_reason(_has_vectors, _can_pad),
        _in_padding(NOT_FINITE),
        is_strict=True,
    ),
    Property(
        "NaN in later tokens",
        "NaN and infinity in later tokens change no output",
        first_reason(_has_vectors, _is_causal),
        _in_later_tokens(NOT_FINITE),
        is_strict=True,
    ),
)

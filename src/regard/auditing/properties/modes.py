"""Outputs are the same however the model is run: again, by another implementation, compiled, or less precise."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.compare import Outcome
from regard.auditing.noise import SAFETY, difference, largest, measure_noise
from regard.auditing.properties.padding import pad
from regard.auditing.properties.property import Property
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject
from regard.errors import RefusedError, class_and_line

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "regard")


def _always(subject: Subject) -> str | None:
    del subject
    return None


def _random(subject: Subject) -> Sequence[Comparison]:
    """The same call with other random numbers: dropout that ``eval`` does not turn off is seen here."""
    call = replace(subject.call([Row(subject.text(1)), Row(subject.text(2))]), is_random=True)
    count = subject.stream.length
    return [
        Comparison(Span(call, row), Span(replace(call, seed=seed), row), count, "another seed of random numbers")
        for seed in (11, 12)
        for row in range(2)
    ]


def _implementations(subject: Subject) -> list[str]:
    """Implementations of attention that a model of transformers can be set to."""
    module: Any = subject.module
    if not hasattr(module, "set_attn_implementation"):
        return []
    before = module.config._attn_implementation
    found = []
    for name in IMPLEMENTATIONS:
        try:
            if name == "regard":
                import regard.hf  # noqa: F401  (registers the name)
            module.set_attn_implementation(name)
            if module.config._attn_implementation == name:
                found.append(name)
        # transformers raises ValueError, ImportError and others for what a type or a machine does not have.
        except Exception:
            continue
    module.set_attn_implementation(before)
    return found


def _has_implementations(subject: Subject) -> str | None:
    if not hasattr(subject.module, "set_attn_implementation"):
        return "implementations are chosen by name in transformers alone"
    return None if len(_implementations(subject)) > 1 else "the model has a single implementation of attention"


@contextmanager
def _implementation(module: Any, name: str) -> Iterator[None]:
    before = module.config._attn_implementation
    module.set_attn_implementation(name)
    try:
        yield
    finally:
        module.set_attn_implementation(before)


def _by_implementation(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    """Each implementation against the first: a text alone, and one with padding on each side."""
    names = [name for name in _implementations(subject) if name != "flex_attention"]
    stream, length = subject.stream, subject.stream.length
    calls = [(subject.call([Row(subject.text(1))]), 0)]
    if stream.mask and not stream.fixed:
        calls += [
            (pad(subject, stream, subject.text(1), "right", stream.padding(3, 40)), 0),
            (pad(subject, stream, subject.text(1), "left", stream.padding(3, 40)), 3),
        ]
    found = []
    for call, start in calls:
        base = None
        for name in names:
            outputs = subject.run(replace(call, around=_around(subject, name)))[0, start : start + length]
            if base is None:
                base = outputs
                continue
            gap = difference(base, outputs)
            change = f'attn_implementation="{name}" in place of "{names[0]}"'
            if call.length > length:
                change = f'attn_implementation="{name}" in place of "{names[0]}", with padding'
            found.append(Outcome(gap, noise.threshold(largest(base)), change))
    return found


def _around(subject: Subject, name: str) -> Callable[[], Any]:
    return lambda: _implementation(subject.module, name)


def _has_weights(subject: Subject) -> str | None:
    if subject.module is None or not any(weight.is_floating_point() for weight in subject.module.parameters()):
        return "there are no weights to convert"
    if subject.precision != "float64":
        return "the model was not run in float64, so nothing more precise is known"
    with _Choices() as choices:
        subject.run(subject.call([Row(subject.text(1))]))
    return "the model chooses experts or keys by their scores, and rounding changes choices" if choices.found else None


@final
class _Choices(TorchDispatchMode):
    """Sees whether operations choose by numbers: the largest ones, or their order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note one that chooses."""
        del types
        is_number = bool(args) and isinstance(args[0], Tensor) and args[0].is_floating_point()
        self.found |= is_number and func._schema.name.removeprefix("aten::") in ("topk", "sort", "argmax")
        return func(*args, **(kwargs or {}))


def _bfloat16(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    """The model in bfloat16 against float64, beside the change that rounding all weights to bfloat16 makes."""
    del noise
    assert subject.module is not None
    call = subject.call([Row(subject.text(1))])
    padded = (
        pad(subject, subject.stream, subject.text(1), "right", subject.stream.padding(3, 40))
        if (subject.stream.mask and not subject.stream.fixed)
        else call
    )
    rounded = copy.deepcopy(subject.module).bfloat16()
    wide = copy.deepcopy(rounded).double()
    same_weights = subject.with_module(wide)
    half = replace(subject.with_module(rounded), precision="bfloat16")
    outcomes = []
    changes = ((call, "the model was run in bfloat16"), (padded, "the model was run in bfloat16, with padding"))
    for tried, change in changes:
        exact, base, outputs = (
            _visible(model, tried, subject.stream.length) for model in (subject, same_weights, half)
        )
        expected = max(difference(exact, base), 2**-8 * largest(exact))
        outcomes.append(Outcome(difference(base, outputs), SAFETY * expected, change))
    return outcomes


def _visible(subject: Subject, call: Call, length: int) -> Tensor:
    """Outputs of the first row at its first positions."""
    return subject.run(call)[0, :length]


def in_float32(subject: Subject, noise: NoiseFloor) -> tuple[Subject, NoiseFloor]:
    """A copy of the model in float32, and its noise floor; the subject itself if it is not in float64."""
    if subject.precision != "float64":
        return subject, noise
    module = copy.deepcopy(subject.module)
    assert module is not None
    single = replace(subject.with_module(module.float()), precision="float32")
    return single, measure_noise(single)


BACKEND = "inductor"
"""The compiler of ``torch.compile``; the usual one needs a compiler of C++ on a CPU."""


def _compiled(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    """The compiled model against the same in eager mode, in float32 and with the noise floor of float32."""
    eager, floor = in_float32(subject, noise)
    module, stream, length = eager.module, subject.stream, subject.stream.length
    text = subject.text(1)
    calls = {"the model was compiled": subject.call([Row(text)])}
    if stream.dims and not stream.fixed:
        later = stream.replace(text, length - 1, subject.text(2))
        calls |= {
            "the model was compiled, and its last token was replaced": subject.call([Row(later)]),
            "the model was compiled, and read a text of another length": subject.call(
                [Row(subject.text(3, length + 4))]
            ),
        }
        if stream.mask:
            calls["the model was compiled, with padding"] = pad(subject, stream, text, "right", stream.padding(3, 40))
    found = []
    try:
        compiled = eager.with_module(torch.compile(module, backend=BACKEND))
        for change, call in calls.items():
            base, outputs = _visible(eager, call, length), _visible(compiled, call, length)
            found.append(Outcome(difference(base, outputs), floor.threshold(largest(base)), change))
    # Compilers raise errors of any kind, also where there is no compiler of C++.
    except Exception as error:
        raise RefusedError(
            f"torch.compile failed: {class_and_line(error, 150)}",
            expected="a model that torch can compile, and a compiler",
            got=class_and_line(error, 150),
            do="compile the model without an audit to see the whole error",
        ) from error
    finally:
        torch.compiler.reset()
    return found


MODES = (
    Property("random numbers", "outputs in eval mode depend on no random numbers", _always, _random),
    Property(
        "implementations",
        "every attn_implementation gives the same outputs",
        _has_implementations,
        measure=_by_implementation,
    ),
    Property(
        "compiled",
        "the model has the same outputs if torch compiles it",
        _has_weights,
        measure=_compiled,
        is_strict=True,
    ),
    Property(
        "bfloat16",
        "outputs in bfloat16 are those in float64, within 64 times what rounding of the weights changes",
        _has_weights,
        measure=_bfloat16,
        is_quick=False,
    ),
)

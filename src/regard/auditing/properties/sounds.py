"""Sounds of several lengths in a batch: a padded sound has the outputs that it has alone, by ``attention_mask``.

The mask is over samples, or over frames of a spectrogram; outputs are fewer. So the outputs of the sound alone are
compared with as many of the padded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.auditing.calls import Call, Comparison, Span, Step
from regard.auditing.compare import Outcome, compare_all
from regard.auditing.properties.property import Property
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject, read_output

_SOUNDS = ("input_values", "input_features")
_MASK = "attention_mask"


def _cannot_ask(subject: Subject) -> str | None:
    if subject.streams[-1].name not in _SOUNDS:
        return "the model reads no sounds"
    if _MASK not in subject.takes:
        return "the model has no argument that hides a part of a sound"
    return None


def _call(subject: Subject, sounds: Sequence[tuple[Tensor, int]]) -> Call:
    """A call with sounds (1, samples, ..), of which so many samples are visible."""
    values = torch.cat([sound for sound, _ in sounds])
    visible = torch.arange(values.shape[1]) < torch.tensor([count for _, count in sounds])[:, None]
    (step,) = subject.call([Row(subject.text(1))] * len(sounds)).steps
    arguments = {**step.arguments, subject.streams[-1].name: values, _MASK: visible.long()}
    call = Call((Step(arguments, step.length),), len(sounds))
    if subject.stream.dims:  # outputs belong to the tokens that are written, and not to frames
        return call
    with subject.running(call):
        result = subject.function(**{name: subject.prepare(value) for name, value in arguments.items()})
    return replace(call, steps=(Step(arguments, read_output(result).shape[1]),))


def _comparisons(subject: Subject) -> Sequence[Comparison]:
    stream = subject.streams[-1]
    first, second = (subject.text(seed, stream=stream)[stream.name] for seed in (3, 4))
    length = first.shape[1]
    count = length - max(length // 4, 1)
    alone = _call(subject, [(first[:, :count], count)])
    silent = torch.cat([first[:, :count], torch.zeros_like(first[:, count:])], 1)
    noisy = torch.cat([first[:, :count], second[:, count:]], 1)
    calls = (
        ("it was padded with silence", _call(subject, [(silent, count)]), 0),
        ("it was padded with noise", _call(subject, [(noisy, count)]), 0),
        ("it was padded with silence, behind a longer sound", _call(subject, [(second, length), (silent, count)]), 1),
    )
    return [Comparison(Span(alone), Span(call, row), alone.length, change) for change, call, row in calls]


def explain_sounds(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    """The cause by experiments: leave out norms over time, pad with silence alone; and by the class of the module."""
    if outcome.comparison is None:
        return ""
    norms = _norms_over_time(subject)
    pairs = _comparisons(subject)
    if norms and not compare_all(subject, [_without(pair, list(norms.values())) for pair in pairs], noise).is_leak:
        name, norm = next(iter(norms.items()))
        cause = f"{name} ({type(norm).__name__}) computes its statistics over all of the time, hidden samples too"
        if getattr(getattr(subject.module, "config", None), "feat_extract_norm", "") == "group":
            return f'{cause}: models with feat_extract_norm="group" were made to be called without attention_mask'
        return cause
    if not compare_all(subject, [pairs[0]], noise).is_leak:
        return "hidden samples are read: silence in them changes nothing, and noise does"
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return f"{type(module).__name__} reads hidden frames beside visible ones: they are not set to 0 before it"
    return ""


def _norms_over_time(subject: Subject) -> dict[str, nn.Module]:
    modules = [] if subject.module is None else subject.module.named_modules()
    return {
        name: part
        for name, part in modules
        if isinstance(part, nn.GroupNorm | nn.InstanceNorm1d | nn.InstanceNorm2d)
        or (isinstance(part, nn.modules.batchnorm._BatchNorm) and not part.track_running_stats)
        or (isinstance(part, nn.LayerNorm) and len(part.normalized_shape) > 1)
    }


def _without(pair: Comparison, norms: Sequence[nn.Module]) -> Comparison:
    """The comparison with modules that return their input."""

    @contextmanager
    def around() -> Iterator[None]:
        with ExitStack() as stack:
            for norm in norms:
                stack.enter_context(norm.register_forward_hook(lambda module, arguments, result: arguments[0]))
            yield

    base, other = (replace(span, call=replace(span.call, around=around)) for span in (pair.base, pair.other))
    return replace(pair, base=base, other=other)


SOUNDS = (
    Property(
        "padded sounds",
        "a sound that is padded in a batch has the outputs that it has alone",
        _cannot_ask,
        _comparisons,
    ),
)

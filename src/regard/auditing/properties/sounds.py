"""Sounds of several lengths in a batch: a padded sound has the outputs that it has alone, by the mask.

The mask is over samples, or over frames of a spectrogram; outputs are fewer. So the outputs of the sound alone are
compared with as many of the padded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.calls import Call, Comparison, Span, Step
from regard.auditing.compare import Outcome, compare_all
from regard.auditing.example import OWN_SOUND_NAMES, SOUND_NAMES
from regard.auditing.properties.property import Property
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Stream, Subject, read_output

MAX_CONVOLUTIONS = 16
"""Convolutions that are tried as the first that reads hidden frames."""


def _cannot_ask(subject: Subject) -> str | None:
    sounds = subject.streams[-1]
    if sounds.dims or sounds.name not in (*SOUND_NAMES, *OWN_SOUND_NAMES):
        return "the model reads no sounds"
    if not sounds.mask:
        return "the model has no argument that hides a part of a sound"
    return None if _takes_shorter(subject, sounds) else "the model reads sounds of a single length"


def _takes_shorter(subject: Subject, sounds: Stream) -> bool:
    """Whether the model reads a shorter sound: Whisper, for one, reads 30 seconds, and in them silence."""
    sound = subject.text(3, stream=sounds)[sounds.name]
    count = _visible_samples(sound)
    try:
        subject.run(_call(subject, [(sound[:, :count], count)]))
    # Models raise errors of any kind for lengths that they do not read.
    except Exception:
        return False
    return True


def _visible_samples(sound: Tensor) -> int:
    """The samples, or frames, of a sound (1, samples, ..) that are not padding."""
    length = sound.shape[1]
    return length - max(length // 4, 1)


def _call(subject: Subject, sounds: Sequence[tuple[Tensor, int]]) -> Call:
    """A call with sounds (1, samples, ..), of which so many samples are visible."""
    values = torch.cat([sound for sound, _ in sounds])
    visible = torch.arange(values.shape[1]) < torch.tensor([count for _, count in sounds])[:, None]
    (step,) = subject.call([Row(subject.text(1))] * len(sounds)).steps
    stream = subject.streams[-1]
    arguments = {**step.arguments, stream.name: values, stream.mask: stream.make_mask(visible)}
    call = Call((Step(arguments, step.length),), len(sounds))
    if subject.stream.dims:  # outputs belong to the tokens that are written, and not to frames
        return call
    with subject.running(call):
        result = subject.function(**{name: subject.prepare(value) for name, value in arguments.items()})
    return replace(call, steps=(Step(arguments, read_output(result).shape[1]),))


def _comparisons(subject: Subject) -> Sequence[Comparison]:
    stream = subject.streams[-1]
    first, second = (subject.text(seed, stream=stream)[stream.name] for seed in (3, 4))
    length, count = first.shape[1], _visible_samples(first)
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
    norms, convolutions = _norms_over_time(subject), _convolutions_over_time(subject)
    pairs = _comparisons(subject)

    def holds(norms: Mapping[str, nn.Module], convolutions: Mapping[str, nn.Module]) -> bool:
        changed = [_without(pair, list(norms.values()), list(convolutions.values())) for pair in pairs]
        return not compare_all(subject, changed, noise).is_leak

    if norms and holds(norms, {}):
        cause = _describe_norm(norms)
        if getattr(getattr(subject.module, "config", None), "feat_extract_norm", "") == "group":
            return f'{cause}: models with feat_extract_norm="group" were made to be called without attention_mask'
        return cause
    if convolutions and holds({}, convolutions):
        return _describe_convolution(convolutions, holds, {})
    if norms and convolutions and holds(norms, convolutions):
        return f"{_describe_norm(norms)}; and {_describe_convolution(convolutions, holds, norms)}"
    if not compare_all(subject, [pairs[0]], noise).is_leak:
        return "hidden samples are read: silence in them changes nothing, and noise does"
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return f"{type(module).__name__} reads hidden frames beside visible ones: they are not set to 0 before it"
    return ""


def _describe_norm(norms: Mapping[str, nn.Module]) -> str:
    name, norm = next(iter(norms.items()))
    return f"{name} ({type(norm).__name__}) computes its statistics over all of the time, hidden samples too"


def _describe_convolution(
    convolutions: Mapping[str, nn.Module],
    holds: Callable[[Mapping[str, nn.Module], Mapping[str, nn.Module]], bool],
    norms: Mapping[str, nn.Module],
) -> str:
    """The first convolution without whose change the leak is there again."""
    names = list(convolutions)[:MAX_CONVOLUTIONS]
    needed = (
        name
        for name in names
        if not holds(norms, {other: convolutions[other] for other in convolutions if other != name})
    )
    name = next(needed, names[0])
    kind = type(convolutions[name]).__name__
    return f"{name} ({kind}) reads hidden frames beside visible ones: they are not set to 0 before it"


def _convolutions_over_time(subject: Subject) -> dict[str, nn.Module]:
    """The convolutions of more than one frame."""
    modules = [] if subject.module is None else subject.module.named_modules()
    return {name: part for name, part in modules if isinstance(part, nn.Conv1d) and part.kernel_size[0] > 1}


def _norms_over_time(subject: Subject) -> dict[str, nn.Module]:
    modules = [] if subject.module is None else subject.module.named_modules()
    return {
        name: part
        for name, part in modules
        if isinstance(part, nn.GroupNorm | nn.InstanceNorm1d | nn.InstanceNorm2d)
        or (isinstance(part, nn.modules.batchnorm._BatchNorm) and not part.track_running_stats)
        or (isinstance(part, nn.LayerNorm) and len(part.normalized_shape) > 1)
    }


def _without(pair: Comparison, norms: Sequence[nn.Module], convolutions: Sequence[nn.Module]) -> Comparison:
    """The comparison with norms that return their input, and convolutions that read 0 in hidden frames.

    The frames of the sound alone, which is run first, are those that are visible.
    """
    frames: dict[nn.Module, int] = {}

    def note_frames(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        frames[module] = arguments[0].shape[-1]

    def hide_frames(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden = arguments[0].clone()
        hidden[pair.other.row, ..., frames.get(module, hidden.shape[-1]) :] = 0
        return (hidden, *arguments[1:])

    def around(before: Callable[..., Any]) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def run() -> Iterator[None]:
            with ExitStack() as stack:
                for norm in norms:
                    stack.enter_context(norm.register_forward_hook(lambda module, arguments, result: arguments[0]))
                for convolution in convolutions:
                    stack.enter_context(convolution.register_forward_pre_hook(before))
                yield

        return run

    base = replace(pair.base, call=replace(pair.base.call, around=around(note_frames)))
    return replace(
        pair, base=base, other=replace(pair.other, call=replace(pair.other.call, around=around(hide_frames)))
    )


SOUNDS = (
    Property(
        "padded sounds",
        "a sound that is padded in a batch has the outputs that it has alone",
        _cannot_ask,
        _comparisons,
    ),
)

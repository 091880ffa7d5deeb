"""Make a subject of a model of ``transformers`` or regard, any torch module, or a function of query, key and value."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.example import OWN_SOUND_NAMES, SOUND_NAMES, bind_inputs, is_triangle, parameters_of, read_example
from regard.auditing.media_inputs import find_media_inputs
from regard.auditing.memory import check_memory, fits_in_memory
from regard.auditing.noise import distance
from regard.auditing.own_decoder import layer_function
from regard.auditing.own_subject import describe_own, model_function
from regard.auditing.subject import Row, Stream, Subject
from regard.auditing.transformers_subject import describe_transformers, reads_ids
from regard.errors import OptionError, RefusedError, RegardError, class_and_line, short_repr

LENGTH = 13
"""Tokens of a text, if there is no example: a prime that no size of a small model has."""

_IN_THE_SHELL = "in the shell, a function that returns (model, inputs): regard audit my_models:build"


def make_subject(
    model: Any,
    inputs: Any,
    *,
    causal: bool | None,
    length: int | None,
    seed: int,
    prefix: int | None = None,
    is_copied: bool = True,
) -> Subject:
    """Make the subject of an audit, of a copy of the model, in float64 if it can be run in it and fits into memory.

    Raises OptionError for a model that cannot be called, RefusedError for one that fails on its own inputs.
    """
    if not callable(model):
        raise OptionError(
            "wrong model",
            expected="a torch module, or a function of tensors",
            got=short_repr(model),
            do="pass the model itself, with weights",
        )
    module, notes = _copy_module(model, is_copied=is_copied)
    function = model if module is None else module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject = _describe(function, module, inputs, True if prefix else causal, length)
        subject = _set_prefix(subject, prefix or 0)
        notes = (*notes, *_describe_bidirectional(subject, causal))
        return _choose_precision(subject, seed, (*notes, *subject.notes))


def check_module(module: nn.Module) -> None:
    """Raise OptionError for a module that cannot be called: one without ``forward``, or without numbers in it."""
    name = type(module).__name__
    if type(module).forward is nn.Module.forward and "forward" not in vars(module):
        raise OptionError(
            f"{name} cannot be called",
            expected="a torch module with a method forward",
            got="a module without it",
            do="write forward, or pass the part that is called, or a function of tensors",
        )
    empty = next((place for place, weight in module.named_parameters() if weight.is_meta), None)
    if empty is not None:
        raise OptionError(
            f"{name} has no weights",
            expected="a model whose weights are loaded",
            got=f"{empty} on the device 'meta', which holds no numbers",
            do="load the weights first, or initialize a small model: module.to_empty(device='cpu')",
        )


def _describe_bidirectional(subject: Subject, causal: bool | None) -> tuple[str, ...]:
    """A note on a model that is audited as bidirectional because an argument or its config says so."""
    if subject.causal is not False or not subject.stream.dims:
        return ()
    declared = [name for name in ("is_causal", "causal") if getattr(subject.config, name, None) is False]
    if causal is False:
        return ("audited as bidirectional, as `causal=False` says: an influence of later tokens is no leak then",)
    for name in declared:
        return (f"audited as bidirectional, as its config says ({name}=False): later tokens are no leak then",)
    return ()


def _set_prefix(subject: Subject, prefix: int) -> Subject:
    """The subject with so many tokens in its prefix. Raises OptionError if few others are left in a text."""
    length = subject.stream.length
    if prefix and prefix > length - 2:
        raise OptionError(
            "the prefix is too long",
            expected=f"at most {length - 2} tokens, in texts of {length}",
            got=str(prefix),
            do=f"for example length={prefix + 8}",
        )
    return replace(subject, prefix=prefix)


def _copy_module(model: Any, *, is_copied: bool) -> tuple[nn.Module | None, tuple[str, ...]]:
    """A copy in eval mode, so that the caller's model stays as it is."""
    if not isinstance(model, nn.Module):
        return None, ()
    is_training = any(part.training for part in model.modules())
    notes = (
        ("the model was in training mode, and was audited in eval mode: call `model.eval()`",) if is_training else ()
    )
    if not is_copied:
        return model.eval(), notes
    check_memory(
        sum(weight.numel() * weight.element_size() for weight in model.parameters()),
        "there is no memory for a copy of the model",
    )
    try:
        module = copy.deepcopy(model)
    # Modules may hold anything, and deepcopy raises errors of any kind for what cannot be copied.
    except Exception as error:
        reason = class_and_line(error, 120)
        notes = (*notes, f"the model cannot be copied ({reason}), so it was audited in place")
        return model.eval(), notes
    return module.eval(), notes


def _describe(
    function: Callable[..., Any], module: nn.Module | None, inputs: Any, causal: bool | None, length: int | None
) -> Subject:
    if module is not None and _is_from(module, "transformers", "PreTrainedModel") and reads_ids(module):
        return describe_transformers(module, causal, length or _length_of(inputs) or LENGTH)
    if module is not None and _is_from(module, "regard.models", "Model"):
        subject = describe_own(module, causal, length or _length_of(inputs), LENGTH)
        if subject is not None:
            return subject
    if inputs is None and module is not None:
        inputs = find_media_inputs(module)
    if inputs is None:
        raise OptionError(
            "no inputs for this model",
            expected="inputs of one call: token ids (batch, length), vectors, or a mapping of arguments",
            got="none, and the model is none whose inputs are known",
            do=f"for example regard.audit(model, torch.randint(0, 100, (1, 13))); {_IN_THE_SHELL}",
        )
    forward = function if module is None else module.forward
    arguments = bind_inputs(forward, inputs)
    is_of_sounds = module is not None and _is_from(module, "regard.models", "AudioEncoder")
    example = read_example(forward, module, arguments, sounds=OWN_SOUND_NAMES if is_of_sounds else SOUND_NAMES)
    parameters = parameters_of(forward)
    first = example.streams[0]
    streams = example.streams if first.fixed else (replace(first, length=length or first.length), *example.streams[1:])
    # The mask of a layer of regard is an object over queries and keys, and no tensor that hides tokens.
    is_layer = module is not None and type(module).__module__.startswith("regard.") and hasattr(module, "empty_cache")
    streams = tuple(replace(stream, mask="") for stream in streams) if is_layer else streams
    wrap = layer_function if is_layer else model_function if is_of_sounds else None
    return Subject(
        type(module).__name__ if module is not None else getattr(function, "__name__", "function"),
        _kind_of(example.streams, module),
        function if wrap is None else wrap(module),
        module,
        streams,
        frozenset(parameters) | ({"use_cache"} if is_layer else set()),
        any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()),
        causal if causal is not None else _find_causal(module, example.is_causal),
        constants=example.constants,
        family="regard" if is_layer else "torch",
        wrap=wrap,
        cache="state" if is_layer else "past_key_values" if {"past_key_values", "use_cache"} <= set(parameters) else "",
    )


def _kind_of(streams: tuple[Stream, ...], module: nn.Module | None) -> str:
    if not streams[0].dims:
        return "module of pictures or sounds"
    if module is None:
        return "function of tensors"
    return "module of token ids" if streams[0].pads else "module of vectors"


def _is_from(module: nn.Module, package: str, base: str) -> bool:
    return any(kind.__name__ == base and kind.__module__.startswith(package) for kind in type(module).__mro__)


def _length_of(inputs: Any) -> int | None:
    """The length of the first ids in example inputs."""
    values = (
        inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple | list) else [inputs]
    )
    return next((value.shape[1] for value in values if isinstance(value, Tensor) and value.dim() == 2), None)


def _find_causal(module: nn.Module | None, has_causal_mask: bool) -> bool | None:
    """Whether a module declares that it is causal: by a causal mask among its inputs, by an attribute ``causal`` or
    ``is_causal`` of a part, or by a buffer that is a lower triangle.
    """
    if has_causal_mask:
        return True
    for part in module.modules() if module is not None else ():
        if any(getattr(part, name, None) is True for name in ("causal", "is_causal")):
            return True
        if any(is_triangle(buffer, smallest=3, corner=64) for buffer in part.buffers(recurse=False)):
            return True
    return None


# precision


def _choose_precision(subject: Subject, seed: int, notes: tuple[str, ...]) -> Subject:
    """The subject in float64; in its own precision, with a note, if it cannot be run in float64."""
    subject = replace(subject, seed=seed, notes=notes)
    own = _own_precision(subject.module)
    if (
        subject.module is not None
        and own != "float64"
        and not fits_in_memory(sum(weight.numel() * 8 for weight in subject.module.parameters()))
    ):
        notes = (
            *notes,
            f"the model does not fit into memory in float64, and is run in {own}: rounding hides small leaks",
        )
    elif subject.module is None or own != "float64":
        exact = replace(subject, precision="float64")
        try:
            if subject.module is not None:
                subject.module.double()
            exact.run(exact.call([_first_row(exact)]))
        # A model may raise errors of any kind for numbers that its own code does not take. Not the error is kept, whose
        # traceback holds the tensors of the call.
        except Exception as error:
            reason = class_and_line(error, 120)
        else:
            return _find_positions(exact)
        if subject.module is not None:
            subject.module.to(getattr(torch, own))
        note = f"the model cannot be run in float64 ({reason}), so rounding hides smaller leaks"
        subject = replace(subject, notes=(*notes, note))
    subject = replace(subject, precision=own)
    try:
        subject.run(subject.call([_first_row(subject)]))
    except (RegardError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise RefusedError(
            "the model cannot be run on these inputs",
            expected=f"outputs for {subject.stream.length} tokens of {subject.stream.name}",
            got=f"{subject.name} raised {class_and_line(error, 300)}",
            do=f"pass the inputs of a call that works, as a mapping of arguments; {_IN_THE_SHELL}",
        ) from error
    return _find_positions(subject)


def _find_positions(subject: Subject) -> Subject:
    """The subject with the name of its argument of places, if places from 0 on give the outputs of none.

    RoBERTa and its kin count from the id of padding, and find hidden tokens by that id, so they are left to it.
    """
    streams = []
    for stream in subject.streams:
        names = ("position_ids", "positions") if stream is subject.stream else (f"{stream.name}_positions",)
        found = [name for name in names if name in subject.takes and _counts_places(subject, stream, name)]
        streams.append(replace(stream, positions=found[0]) if found else stream)
    return replace(subject, streams=tuple(streams))


def _counts_places(subject: Subject, stream: Stream, name: str) -> bool:
    """Whether places from 0 on, as the argument ``name``, give the outputs of none."""
    places: Any = torch.arange(stream.length)[None]
    try:
        given = subject.run(subject.call([_first_row(subject)], **{name: places}))
    # A model may take other places than one number for each token.
    except Exception:
        return False
    return distance(subject.run(subject.call([_first_row(subject)])), given) < 1e-6


def _first_row(subject: Subject) -> Row:
    return Row(subject.text(1))


def _own_precision(module: nn.Module | None) -> str:
    types = [weight.dtype for weight in module.parameters() if weight.is_floating_point()] if module else []
    return str(types[0]).removeprefix("torch.") if types else "float32"

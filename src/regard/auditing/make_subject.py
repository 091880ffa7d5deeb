"""Make a subject of a model of ``transformers`` or regard, any torch module, or a function of query, key and value."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.example import bind_inputs, is_triangle, parameters_of, read_example
from regard.auditing.media_inputs import find_media_inputs
from regard.auditing.memory import check_memory, fits_in_memory
from regard.auditing.noise import distance
from regard.auditing.own_decoder import layer_function, step_function
from regard.auditing.properties.prefix import TOKEN_TYPES, TokenTypes
from regard.auditing.subject import Row, Stream, Subject, Text
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
    if module is not None and _is_from(module, "transformers", "PreTrainedModel") and _reads_ids(module):
        return _describe_transformers(module, causal, length or _length_of(inputs) or LENGTH)
    if module is not None and _is_from(module, "regard.models", "Model") and _is_text_model(module):
        return _describe_regard(module, causal, length or _length_of(inputs) or LENGTH)
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
    example = read_example(forward, module, arguments)
    parameters = parameters_of(forward)
    first = example.streams[0]
    streams = example.streams if first.fixed else (replace(first, length=length or first.length), *example.streams[1:])
    # The mask of a layer of regard is an object over queries and keys, and no tensor that hides tokens.
    is_layer = module is not None and type(module).__module__.startswith("regard.") and hasattr(module, "empty_cache")
    streams = tuple(replace(stream, mask="") for stream in streams) if is_layer else streams
    return Subject(
        type(module).__name__ if module is not None else getattr(function, "__name__", "function"),
        _kind_of(example.streams, module),
        layer_function(module) if is_layer else function,
        module,
        streams,
        frozenset(parameters) | ({"use_cache"} if is_layer else set()),
        any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()),
        causal if causal is not None else _find_causal(module, example.is_causal),
        constants=example.constants,
        family="regard" if is_layer else "torch",
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


def _draw_ids(names: tuple[str, ...], allowed: Tensor) -> Callable[[int, torch.Generator], Text]:
    def draw(length: int, generator: torch.Generator) -> Text:
        return {name: allowed[torch.randint(0, len(allowed), (1, length), generator=generator)] for name in names}

    return draw


def _allowed_ids(vocabulary: int, special: set[int]) -> Tensor:
    """Ids that are words: no special ones, if enough others are left."""
    words = [token for token in range(min(vocabulary, 200_000)) if token not in special]
    return torch.tensor(words if len(words) > 1 else list(range(vocabulary)))


# transformers


def _reads_ids(module: Any) -> bool:
    return getattr(module, "main_input_name", "") == "input_ids"


def _describe_transformers(model: Any, causal: bool | None, length: int) -> Subject:
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    parameters = inspect.signature(model.forward).parameters
    special = {
        value for name, value in config.to_dict().items() if name.endswith("token_id") and isinstance(value, int)
    }
    special |= {0, 1, 2}
    vocabulary = _vocabulary_of(model, config)
    pads = tuple(token for token in _padding_ids(config) if token < vocabulary) or (0,)
    allowed = _allowed_ids(vocabulary, special)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    takes = frozenset(parameters)

    def stream(name: str, mask: str, tokens: int, *, is_aligned: bool = True) -> Stream:
        hides = mask if mask in takes or takes_any else ""
        return Stream(
            name, _draw_ids((name,), allowed), tokens, is_aligned, {name: 1}, {name: 0}, hides, Tensor.long, pads=pads
        )

    if model.config.is_encoder_decoder and "decoder_input_ids" in takes:
        target = stream("decoder_input_ids", "decoder_attention_mask", max(length - 4, 2))
        streams: tuple[Stream, ...] = (target, stream("input_ids", "attention_mask", length, is_aligned=False))
        kind, is_causal = "encoder-decoder of token ids", True
    else:
        streams = (stream("input_ids", "attention_mask", length),)
        is_causal = _is_causal_type(model, config)
        kind = "decoder of token ids" if is_causal else "encoder of token ids"
    cache = next((name for name in ("past_key_values", "cache_params", "state") if name in takes), "")
    return Subject(
        type(model).__name__,
        kind,
        model,
        model,
        streams,
        takes,
        takes_any,
        is_causal if causal is None else causal,
        model.config,
        "transformers",
        constants=functools.partial(_constants, takes, TOKEN_TYPES.get(model.config.model_type)),
        cache=cache,
    )


def _constants(takes: Collection[str], types: TokenTypes | None, batch: int, length: int) -> dict[str, Any]:
    """Arguments of each call. Where tokens are in a prefix unless their types say otherwise, the types say so."""
    made: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if types is not None and types.inside == 0:
        made[types.argument] = torch.full((batch, length), types.outside)
    return made


def _vocabulary_of(model: Any, config: Any) -> int:
    try:
        return int(model.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError):
        return int(getattr(config, "vocab_size", 97))


def _padding_ids(config: Any) -> tuple[int, ...]:
    """The id of padding, and that of the end, which many use as padding."""
    ids = [getattr(config, name, None) for name in ("pad_token_id", "eos_token_id")]
    flat = [token[0] if isinstance(token, list | tuple) and token else token for token in ids]
    return tuple(dict.fromkeys(token for token in flat if isinstance(token, int) and token >= 0))


_BIDIRECTIONAL = {"xlnet", "bert-generation", "cpmant"}
"""Types with a class for causal language models whose attention is bidirectional unless a call says otherwise."""


def _is_causal_type(model: Any, config: Any) -> bool:
    """Whether a model of ``transformers`` declares that it is causal: by its config, or by the use of its type."""
    from transformers.models.auto import modeling_auto as auto

    kind = config.model_type
    if kind in _BIDIRECTIONAL or getattr(config, "is_causal", None) is False:
        return False
    for name in ("is_decoder", "causal", "is_causal"):
        if getattr(config, name, None) is True:
            return True
    masked, writing = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    names = {kind, model.config.model_type}
    return bool(names & set(writing)) and not names & set(masked)


# regard


def _is_text_model(module: Any) -> bool:
    return (
        "ids" in inspect.signature(module.forward).parameters
        or "source" in inspect.signature(module.forward).parameters
    )


def _describe_regard(model: Any, causal: bool | None, length: int) -> Subject:
    from regard import masks
    from regard.models import CausalLanguageModel
    from regard.models.base import Decoder

    parameters = inspect.signature(model.forward).parameters
    config = model.config
    pad = getattr(model, "pad_id", None)
    pads = (int(pad),) if isinstance(pad, int) and pad >= 0 else (0,)

    def make_mask(visible: Tensor) -> Any:
        return masks.keep(visible[:, None, None])

    def stream(name: str, hides: str, tokens: int, vocabulary: int, *, is_aligned: bool = True) -> Stream:
        allowed = _allowed_ids(vocabulary, {0, 1, 2, 3, *pads})
        return Stream(
            name, _draw_ids((name,), allowed), tokens, is_aligned, {name: 1}, {name: 0}, hides, make_mask, pads=pads
        )

    if "target" in parameters:
        sizes = [_size(config, "vocabulary", "source_vocabulary"), _size(config, "vocabulary", "target_vocabulary")]
        streams: tuple[Stream, ...] = (
            stream("target", "", max(length - 4, 2), sizes[1]),
            stream("source", "mask", length, sizes[0], is_aligned=False),
        )
        kind, is_causal = "encoder-decoder of token ids", True
    else:
        streams = (stream("ids", "mask", length, _size(config, "vocabulary")),)
        is_causal = isinstance(model, CausalLanguageModel) or bool(getattr(model, "is_causal", False))
        kind = "decoder of token ids" if is_causal else "encoder of token ids"
    has_state = isinstance(model, Decoder)
    return Subject(
        type(model).__name__,
        kind,
        step_function(model) if has_state else model,
        model,
        streams,
        frozenset(parameters) | ({"use_cache"} if has_state else set()),
        False,
        is_causal if causal is None else causal,
        config,
        "regard",
        cache="state" if has_state else "",
    )


def _size(config: Any, *names: str) -> int:
    return next((int(getattr(config, name)) for name in names if hasattr(config, name)), 32)


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
        except RegardError as error:
            reason: Exception = error
        # A model may raise errors of any kind for numbers that its own code does not take.
        except Exception as error:
            reason = error
        else:
            return _find_positions(exact)
        if subject.module is not None:
            subject.module.to(getattr(torch, own))
        note = f"the model cannot be run in float64 ({class_and_line(reason, 120)}), so rounding hides smaller leaks"
        subject = replace(subject, notes=(*notes, note))
    subject = replace(subject, precision=own)
    try:
        subject.run(subject.call([_first_row(subject)]))
    except RegardError:
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
    call = subject.call([_first_row(subject)])
    places: Any = torch.arange(subject.stream.length)[None]
    for name in {"position_ids", "positions"} & subject.takes:
        try:
            given = subject.run(subject.call([_first_row(subject)], **{name: places}))
        # A model may take other places than one number for each token.
        except Exception:
            continue
        if distance(subject.run(call), given) < 1e-6:
            return replace(subject, positions=name)
    return subject


def _first_row(subject: Subject) -> Row:
    return Row(subject.text(1))


def _own_precision(module: nn.Module | None) -> str:
    types = [weight.dtype for weight in module.parameters() if weight.is_floating_point()] if module else []
    return str(types[0]).removeprefix("torch.") if types else "float32"

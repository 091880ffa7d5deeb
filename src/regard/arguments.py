"""Helpful errors for unknown or missing arguments.

torch and transformers use other names for the same arguments. ``explain_arguments`` leaves a function and its signature
unchanged, and replaces Python's own TypeError by an ``ArgumentError`` that says which argument to use.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast, final

from regard.errors import ArgumentError, short_repr
from regard.fields import describe_arguments

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@final
class _Replacement(NamedTuple):
    """regard's name for an argument of another library ("" if there is no equivalent), and what to write."""

    name: str
    do: str


_CAUSAL = _Replacement(
    "mask", "mask=masks.causal(); where torch puts query 0 on key 0: mask=masks.causal(align='start')"
)
_WEIGHTS = _Replacement(
    "", "calls return no weights: use regard.observe(...), or `with regard.record(model) as seen: ...`"
)
_WIDTH = _Replacement("width", "width= is the size of a token")
_HEADS = _Replacement("heads", "heads= is the number of query heads")
_KEY_VALUE_HEADS = _Replacement("key_value_heads", "key_value_heads= is the number of heads of keys and values")
_INNER = _Replacement("inner", "inner= is the size inside the feed-forward layer")
_LAYERS = _Replacement("layers", "layers= is the number of layers")
_CACHE = _Replacement("cache", "cache=KeyValueCache.empty(); a call with a cache returns (output, longer cache)")
_PADDING = _Replacement(
    "mask", "mask=masks.from_multihead_attention(key_padding_mask=...), or mask=masks.padding(lengths)"
)
_DROPOUT = _Replacement("dropout", "dropout= is the probability with which a weight is set to 0")
_BATCH_FIRST = _Replacement("", "leave it out: tokens are always (batch, length, width)")
_EXTRA_KEYS = _Replacement("", "append the extra key and value to the tokens yourself")

_REPLACEMENTS = {
    "attn_mask": _Replacement(
        "mask",
        "mask=masks.from_sdpa(attn_mask), or mask=masks.from_multihead_attention(attn_mask) for a mask of "
        "nn.MultiheadAttention, in which True means may not attend",
    ),
    "key_padding_mask": _PADDING,
    "src_key_padding_mask": _PADDING,
    "attention_mask": _Replacement("mask", "mask=masks.from_transformers(attention_mask)"),
    "is_causal": _CAUSAL,
    "causal": _CAUSAL,
    "need_weights": _WEIGHTS,
    "average_attn_weights": _WEIGHTS,
    "output_attentions": _WEIGHTS,
    "return_weights": _WEIGHTS,
    "head_mask": _Replacement(
        "", "no head is switched off by an argument: set its columns of output_projection.weight to 0"
    ),
    "dropout_p": _DROPOUT,
    "attention_dropout": _DROPOUT,
    "enable_gqa": _Replacement("", "leave it out: key and value may have fewer heads, a divisor of the query's"),
    "embed_dim": _WIDTH,
    "d_model": _WIDTH,
    "hidden_size": _WIDTH,
    "num_heads": _HEADS,
    "n_heads": _HEADS,
    "nhead": _HEADS,
    "num_attention_heads": _HEADS,
    "num_kv_heads": _KEY_VALUE_HEADS,
    "num_key_value_heads": _KEY_VALUE_HEADS,
    "kdim": _Replacement("key_width", "key_width= is the size of the tokens that keys are made from"),
    "vdim": _Replacement("value_width", "value_width= is the size of the tokens that values are made from"),
    "dim_feedforward": _INNER,
    "intermediate_size": _INNER,
    "hidden_act": _Replacement("activation", "activation= is one of regard.layers.ACTIVATIONS"),
    "norm_first": _Replacement("norm", 'norm="pre" for True, norm="post" for False'),
    "layer_norm_eps": _Replacement("epsilon", "epsilon= is the epsilon of the norms"),
    "num_layers": _LAYERS,
    "num_hidden_layers": _LAYERS,
    "vocab_size": _Replacement("vocabulary", "vocabulary= is the number of tokens"),
    "batch_first": _BATCH_FIRST,
    "add_bias_kv": _EXTRA_KEYS,
    "add_zero_attn": _EXTRA_KEYS,
    "past_key_value": _CACHE,
    "past_key_values": _CACHE,
    "use_cache": _CACHE,
    "input_ids": _Replacement("ids", "ids= are the token ids (batch, length)"),
    "token_type_ids": _Replacement("segments", "segments= is the type of each token (batch, length)"),
    "batch_size": _Replacement("batch", "batch= is the number of texts in a batch"),
    "num_beams": _Replacement("width", "width= is the number of hypotheses that the search keeps"),
    "beam_size": _Replacement("width", "width= is the number of hypotheses that the search keeps"),
    "max_length": _Replacement("max_tokens", "max_tokens= is the largest number of target tokens, the end included"),
    "max_new_tokens": _Replacement(
        "max_tokens", "max_tokens= is the largest number of target tokens, the end included"
    ),
    "output_hidden_states": _Replacement("keep_layers", "keep_layers=True puts them into .layers of the output"),
}
"""The replacements of arguments of torch and transformers, by argument name."""

EXAMPLES: Mapping[str, str] = {
    "masks.blocked": "masks.blocked(tensor), where True means may not attend",
    "masks.causal": "masks.causal()",
    "masks.documents": "masks.documents([[0, 0, 0, 1, 1]])",
    "masks.from_transformers": "masks.from_transformers(attention_mask)",
    "masks.global_tokens": "masks.global_tokens([0])",
    "masks.keep": "masks.keep(tensor), where True means may attend",
    "masks.padding": "masks.padding([7, 3]), the lengths of the texts",
    "masks.padding_of": "masks.padding_of(ids, pad_id=0)",
    "masks.random_blocks": "masks.random_blocks(3, block=64)",
    "masks.window": "masks.window(4, 0), for 4 keys before each query and none behind it; None is any number",
}
"""Right calls of functions that are easily called wrongly, by function name."""


def explain_arguments(decorated: Decorated) -> Decorated:
    """Make a function, or a class's ``__init__`` and ``forward``, raise ArgumentError for arguments that do not fit.

    The declared fields of a dataclass become the arguments in its docstring.
    """
    if isinstance(decorated, type):
        described = describe_arguments(decorated) if is_dataclass(decorated) else ""
        if described:
            decorated.__doc__ = (
                f"{(decorated.__doc__ or '').rstrip()}\n\n    " + described.replace("\n", "\n    ") + "\n    "
            )
        for name in {"__init__", "forward"} & set(vars(decorated)):
            setattr(decorated, name, explain_arguments(vars(decorated)[name]))
        return decorated
    function: Callable[..., Any] = decorated

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # pytest leaves this frame out
        try:
            return function(*args, **kwargs)
        except TypeError:
            error = _argument_error(function, args, kwargs)
            if error is None:
                raise
            raise error from None

    return cast("Decorated", wrapper)


def _argument_error(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ArgumentError | None:
    """The error for arguments that do not fit the signature; None if they fit."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        problem = str(error)
    else:
        return None
    is_method = bool(args) and "self" in signature.parameters
    name = type(args[0]).__name__ if is_method else function.__name__
    name += f".{function.__name__}" if is_method and function.__name__ not in ("__init__", "forward") else ""
    given = args[1:] if is_method else args
    parameters = [each for each in signature.parameters if each != "self"]
    unknown = next((each for each in kwargs if each not in parameters), None)
    if unknown is None or "positional" in problem:  # names may be all right beside too many places
        example = EXAMPLES.get(_public_name(function))
        return ArgumentError(
            f"{name}: {problem}",
            expected=f"{name}{_signature_text(signature)}",
            got=_describe_call(given, kwargs),
            do=f"for example {example or _complete_call(name, signature, given, kwargs)}"
            if "missing" in problem
            else _advice_on_too_many(signature),
        )
    return unknown_argument_error(name, unknown, kwargs[unknown], parameters)


def _advice_on_too_many(signature: inspect.Signature) -> str:
    """Suggest how to pass what was passed by its place."""
    if _is_traced_by_the_older_onnx_exporter():
        return "pass dynamo=True to torch.onnx.export: its older exporter passes all arguments by their places"
    by_name = [each.name for each in signature.parameters.values() if each.kind == each.KEYWORD_ONLY]
    return f"pass the arguments after * by name, such as {by_name[0]}=..." if by_name else "leave out the last ones"


def _is_traced_by_the_older_onnx_exporter() -> bool:
    torch: Any = sys.modules.get("torch")  # not imported for an error, since many functions need none
    return torch is not None and torch._C._is_tracing() and torch.onnx.is_in_onnx_export()


def _public_name(function: Callable[..., Any]) -> str:
    """Return the name of a function with its package: masks.window."""
    return ".".join([*function.__module__.split(".")[1:2], function.__name__])


def _complete_call(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Write the call that was made with the arguments that it lacks."""
    given = [short_repr(value) for value in args] + [f"{each}={short_repr(value)}" for each, value in kwargs.items()]
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    missing = [
        f"{each.name}=..."
        for each in parameters[len(args) :]
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and each.name not in kwargs
    ]
    return f"{name}({', '.join(given + missing)})"


def unknown_argument_error(function: str, argument: str, value: object, parameters: list[str]) -> ArgumentError:
    """Build the error for an argument that a function, which is called by this name, does not have."""
    return ArgumentError(
        f"{function} has no argument {argument!r}",
        expected=", ".join(parameters),
        got=f"{argument}={short_repr(value)}",
        do=_advice(argument, value, parameters),
    )


def _advice(unknown: str, value: object, parameters: list[str]) -> str:
    """Suggest what to write in place of an unknown argument."""
    replacement = _REPLACEMENTS.get(unknown)
    if replacement is not None and (not replacement.name or replacement.name in parameters):
        return replacement.do
    near = get_close_matches(unknown, parameters, n=1)
    do = f"did you mean {near[0]!r}?" if near else "choose one from the list, or leave it out"
    if "mechanism_options" not in parameters:
        return do
    return f'{do}; an option of the mechanism is given in mechanism_options={{"{unknown}": {short_repr(value)}}}'


def _signature_text(signature: inspect.Signature) -> str:
    """Format the parameters without their types: (query, key, value, *, mask=None)."""
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(plain))


def _describe_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Format the number of positional arguments and the names of the keyword arguments."""
    by_name = ", ".join(kwargs) if kwargs else "none"
    return f"{len(args)} positional, by name: {by_name}"

"""Arguments that a function does not have, answered with those that it has.

Whoever comes from torch or transformers knows other names for the same things. ``explain_arguments`` leaves a function
and its signature as they are, and puts an ``ArgumentError`` in the place of Python's own TypeError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

from regard.errors import ArgumentError, described

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class _Ours(NamedTuple):
    """The argument that stands for another library's, and what to write."""

    name: str
    do: str


_CAUSAL = _Ours("mask", "mask=masks.causal(); where torch puts query 0 on key 0: mask=masks.causal(align='start')")
_WEIGHTS = _Ours("", "weights are no part of a call: regard.observe(...), or `with regard.record(model) as seen: ...`")
_WIDTH = _Ours("width", "width= is the size of a token")
_HEADS = _Ours("heads", "heads= is the number of query heads")
_KEY_VALUE_HEADS = _Ours("key_value_heads", "key_value_heads= is the number of heads of keys and values")
_INNER = _Ours("inner", "inner= is the size inside the feed-forward layer")
_LAYERS = _Ours("layers", "layers= is the number of layers")
_CACHE = _Ours("cache", "cache=KeyValueCache.empty(); a call with a cache returns (output, longer cache)")
_PADDING = _Ours("mask", "mask=masks.from_multihead_attention(key_padding_mask=...), or mask=masks.padding(lengths)")
_DROPOUT = _Ours("dropout", "dropout= is the probability with which a weight is set to 0")
_BATCH_FIRST = _Ours("", "leave it out: tokens are (batch, length, width) here, always")
_EXTRA_KEYS = _Ours("", "append the extra key and value to the tokens yourself")

_OTHERS = {
    "attn_mask": _Ours(
        "mask",
        "mask=masks.from_sdpa(attn_mask), or mask=masks.from_multihead_attention(attn_mask) for a mask of "
        "nn.MultiheadAttention, in which True means may not attend",
    ),
    "key_padding_mask": _PADDING,
    "src_key_padding_mask": _PADDING,
    "attention_mask": _Ours("mask", "mask=masks.from_transformers(attention_mask)"),
    "is_causal": _CAUSAL,
    "causal": _CAUSAL,
    "need_weights": _WEIGHTS,
    "average_attn_weights": _WEIGHTS,
    "output_attentions": _WEIGHTS,
    "return_weights": _WEIGHTS,
    "head_mask": _Ours("", "no head is switched off by an argument: set its columns of output_projection.weight to 0"),
    "dropout_p": _DROPOUT,
    "attention_dropout": _DROPOUT,
    "enable_gqa": _Ours("", "leave it out: key and value may have fewer heads, a divisor of the query's"),
    "embed_dim": _WIDTH,
    "d_model": _WIDTH,
    "hidden_size": _WIDTH,
    "num_heads": _HEADS,
    "n_heads": _HEADS,
    "nhead": _HEADS,
    "num_attention_heads": _HEADS,
    "num_kv_heads": _KEY_VALUE_HEADS,
    "num_key_value_heads": _KEY_VALUE_HEADS,
    "kdim": _Ours("key_width", "key_width= is the size of the tokens that keys are made from"),
    "vdim": _Ours("value_width", "value_width= is the size of the tokens that values are made from"),
    "dim_feedforward": _INNER,
    "intermediate_size": _INNER,
    "hidden_act": _Ours("activation", "activation= is one of regard.layers.ACTIVATIONS"),
    "norm_first": _Ours("norm", 'norm="pre" for True, norm="post" for False'),
    "layer_norm_eps": _Ours("epsilon", "epsilon= is that of the norms"),
    "num_layers": _LAYERS,
    "num_hidden_layers": _LAYERS,
    "vocab_size": _Ours("vocabulary", "vocabulary= is the number of tokens"),
    "batch_first": _BATCH_FIRST,
    "add_bias_kv": _EXTRA_KEYS,
    "add_zero_attn": _EXTRA_KEYS,
    "past_key_value": _CACHE,
    "past_key_values": _CACHE,
    "use_cache": _CACHE,
    "input_ids": _Ours("ids", "ids= are the token ids (batch, length)"),
    "token_type_ids": _Ours("segments", "segments= is the type of each token (batch, length)"),
    "batch_size": _Ours("batch", "batch= is how many texts are read at a time"),
    "num_beams": _Ours("width", "width= is how many hypotheses live side by side"),
    "beam_size": _Ours("width", "width= is how many hypotheses live side by side"),
    "max_length": _Ours("most", "most= is how many tokens a target may have, its end included"),
    "max_new_tokens": _Ours("most", "most= is how many tokens a target may have, its end included"),
    "output_hidden_states": _Ours("keep_layers", "keep_layers=True, and then .layers of the output"),
}
"""Arguments of torch and transformers, and what to write here."""


def explain_arguments(decorated: Decorated) -> Decorated:
    """A function that answers arguments it does not have with an ArgumentError; of a class, constructor and forward."""
    if isinstance(decorated, type):
        for name in {"__init__", "forward"} & set(vars(decorated)):
            setattr(decorated, name, explain_arguments(vars(decorated)[name]))
        return decorated
    function: Callable[..., Any] = decorated

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            error = _misfit(function, args, kwargs)
            if error is None:
                raise
            raise error from None

    return cast("Decorated", called)


def _misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ArgumentError | None:
    """The error for arguments that a function does not take; None where it takes them."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        problem = str(error)
    else:
        return None
    is_method = "self" in signature.parameters
    name = type(args[0]).__name__ if is_method else function.__name__
    name += f".{function.__name__}" if is_method and function.__name__ not in ("__init__", "forward") else ""
    parameters = [each for each in signature.parameters if each != "self"]
    unknown = next((each for each in kwargs if each not in parameters), None)
    if unknown is None:
        return ArgumentError(
            f"{name}: {problem}",
            expected=f"{name}{_readable(signature)}",
            got=_counted(args[1:] if is_method else args, kwargs),
            do="give all that have no default" if "missing" in problem else "give what stands behind * by name",
        )
    return ArgumentError(
        f"{name} has no argument {unknown!r}",
        expected=", ".join(parameters),
        got=f"{unknown}={described(kwargs[unknown])}",
        do=_advice(unknown, parameters),
    )


def _advice(unknown: str, parameters: list[str]) -> str:
    """What to write in place of an argument that is not there."""
    ours = _OTHERS.get(unknown)
    if ours is not None and (not ours.name or ours.name in parameters):
        return ours.do
    near = get_close_matches(unknown, parameters, n=1)
    return f"did you mean {near[0]!r}?" if near else "choose one from the list, or leave it out"


def _readable(signature: inspect.Signature) -> str:
    """The parameters without their types: (query, key, value, *, mask=None)."""
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(plain))


def _counted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """How many arguments were given by place, and which by name."""
    by_name = "by name " + ", ".join(kwargs) if kwargs else "none by name"
    return f"{len(args)} by place, {by_name}"

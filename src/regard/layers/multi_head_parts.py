"""The parts of a ``MultiHeadAttention``: its mechanism by name, and the checks of its heads, position and norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from regard.errors import OptionError, RefusedError, check_kind, check_size, short_repr
from regard.mechanism_catalogue import mechanism as make_mechanism
from regard.mechanisms.base import Mechanism
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.positions.base import PairBias, Rotation


def check_heads(width: int, heads: int, key_value_heads: int, head_dim: int | None, value_head_dim: int | None) -> None:
    """Raise OptionError unless ``heads`` divides the width, or head_dim is set, and key_value_heads divides heads."""
    if value_head_dim is not None:
        check_size("value_head_dim", value_head_dim)
    if head_dim is not None:
        check_size("head_dim", head_dim)
    elif width % heads:
        raise OptionError(
            "width is not divisible by heads",
            expected="a multiple of heads, or head_dim=",
            got=f"width={width}, heads={heads}",
            do=f"use {', '.join(str(n) for n in range(1, 33) if width % n == 0)} heads, or pass head_dim=",
        )
    if heads % key_value_heads:
        raise OptionError(
            "heads is not divisible by key_value_heads",
            expected=f"a divisor of {heads}",
            got=str(key_value_heads),
            do="choose a divisor: each key/value head serves the same number of query heads",
        )


def check_position(position: object) -> None:
    """Raise OptionError unless ``position`` is None, a rotation, or a bias of scores."""
    if position is None or isinstance(position, Rotation | PairBias):
        return
    name = position.__name__ + ", a class" if isinstance(position, type) else type(position).__name__
    raise OptionError(
        f"{name} is not a position inside attention",
        expected="an instance of positions.Rotary, ALiBi, T5Buckets, ShawRelative or Relative2d, or None",
        got=name,
        do="make one, such as position=positions.Rotary(head_dim)"
        if isinstance(position, str | type)
        else "Sinusoidal and Learned positions are added to the embeddings, before the layer",
    )


def resolve_mechanism(
    mechanism: object, options: Mapping[str, Any] | None, heads: int, head_dim: int, dropout: float
) -> Mechanism:
    """Build the mechanism of a name, or return an existing one, which has its own dropout and options."""
    if isinstance(mechanism, str):
        extra = {} if options is None else options
        check_kind("mechanism_options", extra, Mapping, do='for example {"window": 5}')
        reserved = {"heads", "head_dim"} | ({"dropout"} if dropout else set())
        if not all(isinstance(name, str) and name not in reserved for name in extra):
            raise OptionError(
                "mechanism_options contains invalid names",
                expected=f"names of options other than {', '.join(sorted(reserved))}, which the layer sets",
                got=", ".join(map(short_repr, extra)),
                do='for example {"window": 5}',
            )
        # dropout is passed only if it is not 0, since mechanisms that form no weights have no such option.
        return make_mechanism(
            mechanism, heads=heads, head_dim=head_dim, **({"dropout": dropout} if dropout else {}), **extra
        )
    if not isinstance(mechanism, Mechanism):
        raise OptionError(
            "mechanism is neither a name nor a mechanism",
            expected="a name in regard.catalogue(), or a module made by regard.mechanism(...)",
            got=short_repr(mechanism),
            do='for example mechanism="dot_product"',
        )
    for name, value in (("dropout", dropout or None), ("mechanism_options", options)):
        if value is not None:
            raise OptionError(
                f"{name} cannot be set for an existing mechanism",
                expected=f"no {name}, or a mechanism by name",
                got=f"{name}={value} and a {type(mechanism).__name__}",
                do="pass it to the mechanism: regard.mechanism(name, ...)",
            )
    return mechanism


def check_mechanism_position(mechanism: Mechanism, position: object) -> None:
    """Raise RefusedError for a position that is a bias, in a layer whose mechanism supports no such call."""
    reason = mechanism.refuses_bias(position) if isinstance(position, PairBias) else None
    if reason is None:
        return
    name = type(position).__name__
    raise RefusedError(
        f"{type(mechanism).__name__} refuses the position {name}: {reason}",
        expected="a position without a bias of scores, such as positions.Rotary(head_dim), or None",
        got=name,
        do="choose such a position, or the mechanism dot_product, which supports all",
    )


def two_biases_error(position: PairBias) -> OptionError:
    """The error for a bias that is passed to a layer whose position is one."""
    return OptionError(
        "this layer has a bias of its own, and another one was passed",
        expected="bias=None, or a layer without a position that is added to scores",
        got=f"bias=..., and position {type(position).__name__}",
        do="build the layer with position=None",
    )


def check_shared_projection(
    mechanism: Mechanism,
    width: int,
    key_width: int,
    heads: int,
    key_value_heads: int,
    query_norm: object,
    key_norm: object,
) -> None:
    """Raise OptionError unless keys may be projected as queries are, and no norms follow the projection."""
    name = type(mechanism).__name__
    if key_value_heads != heads or key_width != width:
        raise OptionError(
            f"{name} has one projection for queries and keys",
            expected=f"key_value_heads={heads} and key_width={width}, as of queries",
            got=f"key_value_heads={key_value_heads}, key_width={key_width}",
            do="leave key_value_heads and key_width out, or choose a mechanism with a projection of keys",
        )
    if query_norm is not None or key_norm is not None:
        raise OptionError(
            f"{name} has one projection for queries and keys, which has no norms here",
            expected="query_norm=None and key_norm=None",
            got="a norm",
            do="leave the norms out, or choose a mechanism with a projection of keys",
        )


def check_head_norms(query_norm: object, key_norm: object) -> None:
    """Raise OptionError unless the norms of queries and keys are modules, or None."""
    for name, norm in (("query_norm", query_norm), ("key_norm", key_norm)):
        if norm is not None:
            check_kind(name, norm, nn.Module, do="for example layers.RMSNorm(head_dim), or None")


def shared_memory_error(mechanism: Mechanism) -> RefusedError:
    """Build the error for a memory, whose keys a mechanism with shared projections cannot project."""
    name = type(mechanism).__name__
    return RefusedError(
        f"{name} has one projection for queries and keys, so it does not attend to a memory",
        expected="self-attention",
        got="the tokens of a memory",
        do="use another mechanism for cross-attention, such as dot_product",
    )


def check_memory(cache: object) -> None:
    """Raise OptionError unless ``cache`` has the keys and values of a memory."""
    if not isinstance(cache, KeyValueCache):
        raise OptionError(
            "this is not a cache of keys and values",
            expected="a KeyValueCache: KeyValueCache.empty(), or what an earlier call or project_memory returned",
            got=type(cache).__name__,
            do="start with cache=KeyValueCache.empty()",
        )

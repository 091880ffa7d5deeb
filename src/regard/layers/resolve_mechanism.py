"""The mechanism of a layer: made for its heads from a name in the catalogue, or an existing one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import OptionError, check_kind, short_repr
from regard.mechanism_catalogue import mechanism as make_mechanism
from regard.mechanisms.base import Mechanism


def resolve_mechanism(
    mechanism: object, options: Mapping[str, Any] | None, heads: int, head_dim: int, dropout: float
) -> Mechanism:
    """Build the mechanism of a name, or return an existing one, which has its own dropout and options."""
    if isinstance(mechanism, str):
        extra = {} if options is None else options
        check_kind("mechanism_options", extra, Mapping, do='for example {"window": 5}')
        taken = {"heads", "head_dim"} | ({"dropout"} if dropout else set())
        if not all(isinstance(name, str) and name not in taken for name in extra):
            raise OptionError(
                "mechanism_options contains invalid names",
                expected=f"names of options other than {', '.join(sorted(taken))}, which the layer sets",
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

"""What a form has no place for is refused, by the field of the config that asks for it."""

from __future__ import annotations

from collections.abc import Sequence

from regard.errors import RefusedError
from regard.models.transformer import TransformerConfig


def check_one_of(field: str, value: object, valid: Sequence[object], form: str, *, do: str = "") -> None:
    """Raise RefusedError unless ``value``, that of ``field``, is one that the form has."""
    if value not in valid:
        raise RefusedError(
            f"{form} has no form for {field}={value!r}",
            expected=f"{field} " + " or ".join(map(repr, valid)),
            got=repr(value),
            do=do or "choose another form, or train a model of this one",
        )


def check_mechanism(config: TransformerConfig, form: str) -> None:
    """Raise RefusedError unless self-attention is the scaled dot product."""
    check_one_of("mechanism", config.mechanism, ("dot_product",), form)

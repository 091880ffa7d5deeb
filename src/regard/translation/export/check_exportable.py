"""Checks that a model can be exported: config fields that an export form does not support are refused by name."""

from __future__ import annotations

from collections.abc import Sequence

from regard.errors import RefusedError
from regard.models.transformer import TransformerConfig


def check_one_of(field: str, value: object, valid: Sequence[object], form: str, *, do: str = "") -> None:
    """Raise RefusedError unless ``value``, the value of the config's ``field``, is one that ``form`` supports."""
    if value not in valid:
        raise RefusedError(
            f"{form} does not support {field}={value!r}",
            expected=f"{field} " + " or ".join(map(repr, valid)),
            got=repr(value),
            do=do or "export to another form, or train a model with a supported value",
        )


def check_mechanism(config: TransformerConfig, form: str) -> None:
    """Raise RefusedError unless self-attention is scaled dot-product attention."""
    check_one_of("mechanism", config.mechanism, ("dot_product",), form)

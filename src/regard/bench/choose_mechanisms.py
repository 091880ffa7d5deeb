"""Choose the mechanisms of a benchmark: exact attention, and those that are compared with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.comparison import MechanismChoice, parse_choices
from regard.errors import check_kind, short_repr
from regard.mechanism_catalogue import catalogue

EXACT = "dot_product"
"""The mechanism that all others are compared with."""


def choose_mechanisms(
    mechanisms: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None,
) -> tuple[MechanismChoice, ...]:
    """Return exact attention, then the mechanisms: names with options as in the shell, or a mapping to options.

    None is the whole catalogue. Raises OptionError for unknown names and options.
    """
    check_kind("mechanisms", mechanisms, (Sequence, Mapping, type(None)), do='for example ["linear", "performer"]')
    if mechanisms is None:
        found = [MechanismChoice(row.name) for row in catalogue()]
    elif isinstance(mechanisms, Mapping):
        found = [MechanismChoice(name, _copy_options(name, options)) for name, options in mechanisms.items()]
    else:
        texts = [mechanisms] if isinstance(mechanisms, str) else mechanisms
        found = [choice for text in texts for choice in parse_choices(text)]
    chosen = {listed.label: listed for listed in [MechanismChoice(EXACT), *found]}
    return tuple(chosen.values())


def _copy_options(name: str, options: Any) -> Mapping[str, Any]:
    check_kind(f"options of {short_repr(name)}", options, Mapping, do='for example {"landmarks": 32}')
    return dict(options)

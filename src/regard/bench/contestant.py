"""``Contestant``: a mechanism with the options that it is measured with, and how the shell names it.

nystromformer                           the defaults of the catalogue
nystromformer:landmarks=32              with an option; more options follow after further colons
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from regard.catalogue import catalogue
from regard.catalogue import mechanism as make_mechanism
from regard.errors import OptionError, check_choice, check_kind, short_repr
from regard.mechanisms import Mechanism

EXACT = "dot_product"
"""The mechanism that all others are compared with."""


@final
@dataclass(frozen=True)
class Contestant:
    """The mechanism ``name`` of the catalogue with ``options``.

    An option ``length``, the maximum number of keys, is set to the measured length unless it is given.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name and the options that were given, as the shell takes them."""
        return ":".join([self.name, *(f"{name}={_format_value(value)}" for name, value in self.options.items())])

    def options_at(self, length: int) -> dict[str, Any]:
        """The options for texts of ``length`` tokens."""
        (row,) = (row for row in catalogue() if row.name == self.name)
        return ({"length": length} if "length" in row.options else {}) | dict(self.options)

    def build(self, *, heads: int, head_dim: int, length: int, seed: int) -> Mechanism:
        """Build the mechanism; random parameters follow from the seed. Raises OptionError as its constructor does."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return make_mechanism(self.name, heads=heads, head_dim=head_dim, **self.options_at(length))


def choose_contestants(
    mechanisms: Sequence[str] | Mapping[str, Mapping[str, Any]] | None,
) -> tuple[Contestant, ...]:
    """Return exact attention, then the mechanisms: names with options as in the shell, or a mapping to options.

    None is the whole catalogue. Raises OptionError for unknown names and options.
    """
    check_kind("mechanisms", mechanisms, (Sequence, Mapping, type(None)), do='for example ["linear", "performer"]')
    if mechanisms is None:
        found = [Contestant(row.name) for row in catalogue()]
    elif isinstance(mechanisms, Mapping):
        found = [Contestant(name, _check_options(name, options)) for name, options in mechanisms.items()]
    else:
        found = [parse_contestant(one) for one in ([mechanisms] if isinstance(mechanisms, str) else mechanisms)]
    for one in found:
        _check_names(one)
    chosen = {one.label: one for one in [Contestant(EXACT), *found]}
    return tuple(chosen.values())


def parse_contestant(text: str) -> Contestant:
    """Parse ``name:option=value:option=value``. Raises OptionError for another form."""
    check_kind("mechanism", text, str, do='for example "nystromformer:landmarks=32"')
    name, *pairs = text.strip().split(":")
    options = {}
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if not equals or not option.strip():
            raise OptionError(
                f"wrong options of mechanism {short_repr(name)}",
                expected="name:option=value, and further options after further colons",
                got=short_repr(text),
                do="for example nystromformer:landmarks=32",
            )
        options[option.strip()] = _parse_value(value.strip())
    return Contestant(name, options)


def _check_names(one: Contestant) -> None:
    """Raise OptionError for an unknown mechanism or option, before anything is measured."""
    rows = {row.name: row for row in catalogue()}
    check_choice("mechanism", one.name, rows)
    for option in one.options:
        check_choice(f"option of mechanism {one.name!r}:", option, rows[one.name].options)


def _check_options(name: str, options: Any) -> Mapping[str, Any]:
    check_kind(f"options of {short_repr(name)}", options, Mapping, do='for example {"landmarks": 32}')
    return dict(options)


def _parse_value(text: str) -> Any:
    """Parse a number, true, false or null; anything else is a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=short_repr)

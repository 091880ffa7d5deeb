"""Options of the mechanisms for texts of a length, so that every mechanism can be trained in the same set-up."""

from __future__ import annotations

from collections.abc import Sequence

from regard.errors import unknown_name_error
from regard.mechanism_catalogue import catalogue

_LENGTH_OPTIONS = ("length", "max_length")
"""Options of mechanisms with weights for each position: they must cover the longest text."""


def choose_mechanisms(names: str) -> list[str]:
    """The mechanisms of a comma-separated list; "all" are those of the catalogue. Raises OptionError for others."""
    known = [row.name for row in catalogue()]
    chosen = known if names == "all" else names.split(",")
    for name in chosen:
        if name not in known:
            raise unknown_name_error("mechanism", name, known)
    return chosen


def mechanism_options(name: str, length: int, overrides: Sequence[str]) -> list[str]:
    """Options of `regard train classify` for a mechanism: ``overrides`` are NAME.OPTION=VALUE of any mechanism."""
    (row,) = [row for row in catalogue() if row.name == name]
    settings = [f"{option}={length}" for option in row.options if option in _LENGTH_OPTIONS]
    settings += [one.removeprefix(f"{name}.") for one in overrides if one.startswith(f"{name}.")]
    options = ["--attention", name]
    for one in settings:
        options += ["--set", f"mechanism_options.{one}"]
    return options

"""A mechanism and its options as text, ``name:option=value:option=value``, and options that suit a short text."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, final

import torch

from regard.arguments import explain_arguments
from regard.errors import LARGEST_LENGTH, OptionError, check_choice, check_count, check_kind, unknown_name_error
from regard.mechanism_catalogue import CatalogueRow, catalogue, get_row, mechanism
from regard.mechanisms import Mechanism
from regard.parse_value import parse_value

_EXAMPLE = "longformer:window=8,performer"
_BUCKET_TOKENS = 256
"""Number of tokens up to which Reformer would have fewer than 4 buckets."""


@final
@explain_arguments
@dataclass(frozen=True)
class MechanismChoice:
    """The name of a mechanism in the catalogue, and the options that were chosen for it.

    Raises OptionError for an unknown name or option.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("mechanism", self.name, [row.name for row in catalogue()])
        check_kind("options", self.options, Mapping, do='for example {"window": 8}')
        for option in self.options:
            if option not in self.row.options:
                raise unknown_name_error(f"option of mechanism {self.name!r}:", option, self.row.options)

    @property
    def row(self) -> CatalogueRow:
        """The row of the catalogue."""
        return get_row(self.name)

    @property
    def label(self) -> str:
        """The text that ``parse_choices`` reads."""
        options = (f"{name}={option_text(value)}" for name, value in self.options.items())
        return ":".join([self.name, *options])

    def options_at(self, length: int) -> dict[str, Any]:
        """Return the options for texts of ``length`` tokens: an option ``length``, the maximum, is that by default."""
        return ({"length": length} if "length" in self.row.options else {}) | dict(self.options)

    def build(self, *, heads: int, head_dim: int, length: int, seed: int) -> Mechanism:
        """Build the mechanism; random parameters follow from the seed. Raises OptionError as its constructor does."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return mechanism(self.name, heads=heads, head_dim=head_dim, **self.options_at(length))

    def fitted(self, length: int) -> tuple[MechanismChoice, dict[str, str]]:
        """Replace defaults that leave nothing to approximate in a text of ``length`` tokens.

        A window, a number of landmarks, of projected or of chosen keys is at most a quarter of the text, a block at
        most an eighth, with one random block; Reformer has at least 4 buckets, and Linformer's projections are made for
        the length. Queries and keys have projections of their own (``shared=False``). Chosen options stay as they are.

        Returns the choice, and for each replaced option the reason.
        """
        check_count("length", length, maximum=LARGEST_LENGTH)
        parameters = inspect.signature(self.row.mechanism.__init__).parameters
        quarter, eighth = max(1, length // 4), max(1, length // 8)
        fitted_sizes = {
            "window": (max(2, quarter // 2 * 2), f"about a quarter of {length} tokens"),
            "landmarks": (quarter, f"a quarter of {length} tokens"),
            "projected": (quarter, f"a quarter of {length} tokens"),
            "keys": (quarter, f"a quarter of {length} tokens"),
            "block": (eighth, f"an eighth of {length} tokens"),
            "random_blocks": (1, f"few enough for {length} tokens"),
        }
        new, reasons = {}, {}
        for name, (value, reason) in fitted_sizes.items():
            default = parameters[name].default if name in self.row.options else None
            if name not in self.options and _is_count(default) and default > value:
                if name == "random_blocks" and parameters["block"].default <= eighth:
                    continue  # the text has as many blocks as the defaults are meant for
                new[name], reasons[name] = value, f"{reason}; its default is {default}"
        if "block" in new and self._leaves_out("compressed_block") and self._leaves_out("stride"):
            stride = max(1, new["block"] // 4)  # blocks must be multiples of it
            new |= {"block": min(4, new["block"]) * stride, "compressed_block": min(2, new["block"]) * stride}
            new["stride"] = stride
            reasons["compressed_block"] = reasons["stride"] = "to fit the block"
        if self._leaves_out("buckets") and parameters["buckets"].default is None and length < _BUCKET_TOKENS:
            new["buckets"], reasons["buckets"] = 4, f"by default, {length} tokens would share a few"
        if self._leaves_out("shared"):
            new["shared"], reasons["shared"] = False, "the model's queries and keys have projections of their own"
        longest = parameters["length"].default if "length" in self.row.options else None
        if "length" not in self.options and _is_count(longest) and longest < length:
            new["length"], reasons["length"] = length, "the number of tokens"
        return MechanismChoice(self.name, {**self.options, **new}), reasons

    def _leaves_out(self, option: str) -> bool:
        """Whether the mechanism has an option that was not chosen."""
        return option in self.row.options and option not in self.options


@explain_arguments
def parse_choices(text: str) -> list[MechanismChoice]:
    """Parse mechanisms that are separated by commas, such as "longformer:window=8,performer".

    A value is JSON, or else a string; commas and colons within brackets or quotes belong to it. Raises OptionError for
    another form, an unknown name or option, and a mechanism given twice with the same options.
    """
    check_kind("mechanisms", text, str, do=f"for example {_EXAMPLE}")
    parts = [part.strip() for part in _split(text, ",")]
    if not all(parts):
        raise OptionError(
            "the name of a mechanism is missing",
            expected="names of mechanisms, separated by commas",
            got=text[:200] or "nothing",
            do=f"for example {_EXAMPLE}; `regard list` prints all names",
        )
    choices = [_parse_one(part) for part in parts]
    labels = [choice.label for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            raise OptionError(
                f"the mechanism {label} is given twice",
                expected="mechanisms that differ in name or options",
                got=text[:200],
                do="leave one out, or give it other options",
            )
    return choices


def _parse_one(text: str) -> MechanismChoice:
    name, *assignments = _split(text, ":")
    options: dict[str, Any] = {}
    for assignment in assignments:
        option, equals, value = assignment.partition("=")
        if not equals or not option.strip():
            raise OptionError(
                "wrong option of a mechanism",
                expected="name:option=value",
                got=text[:200] or "nothing",
                do=f"for example {_EXAMPLE}",
            )
        options[option.strip()] = parse_value(value.strip())
    return MechanismChoice(name.strip(), options)


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += {"[": 1, "]": -1, "{": 1, "}": -1}.get(character, 0)
        if character == separator and depth <= 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def option_text(value: Any) -> str:
    """Format the value of an option as ``parse_choices`` reads it."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w-]*", value):
        return value
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError):
        return str(value)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)

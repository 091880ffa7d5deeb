"""Values of options in a shell: JSON, Python's True, False and None, and any other text unchanged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from regard.errors import OptionError

_CONSTANTS = {"True": True, "False": False, "None": None}


def parse_value(text: str) -> Any:
    """Parse the value of name=value, for example 4, 0.5, [1, 2], true, True, null, None or a word."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse the name=value of each hyperparameter that is given in the shell; a value that is not JSON is a string."""
    parsed: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (name and equals and value):
            raise OptionError(
                "wrong `hyperparameters`",
                expected="name=value",
                got=assignment,
                do='for example `hyperparameters={"layers": 4}`',
            )
        parsed[name] = parse_value(value)
    return parsed

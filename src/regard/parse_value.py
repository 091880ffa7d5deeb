"""Values of options in a shell: JSON, Python's True, False and None, and any other text as it is."""

from __future__ import annotations

import json
from typing import Any

_CONSTANTS = {"True": True, "False": False, "None": None}


def parse_value(text: str) -> Any:
    """Parse the value of name=value, for example 4, 0.5, [1, 2], true, True, null, None or a word."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

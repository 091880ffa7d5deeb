"""Parameters of a test, of which some run in the fast suite and the others are marked slow."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_except(fast: Container[Any], values: Iterable[Any], *, rows: bool = False) -> list[Any]:
    """Return ``values`` for ``parametrize``: those in ``fast`` as they are, the others marked slow.

    With ``rows`` each value is a tuple with one value for each of several parameters.
    """
    return [
        value if value in fast else pytest.param(*(value if rows else (value,)), marks=pytest.mark.slow)
        for value in values
    ]

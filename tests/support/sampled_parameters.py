"""All combinations of parameters, of which a sample runs by day and the others are marked slow.

The sample is a Latin square: with ``one_in`` = n, of each n combinations that differ in one parameter alone, one is in
it. So every value is, and with three parameters every pair of values of which the third has n values or more.
"""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def parametrize_sample(names: str, *axes: Iterable[Any], one_in: int = 2) -> Any:
    """Parametrize a test over all combinations of the values of ``axes``, one axis for each of ``names``."""
    combinations = product(*(enumerate(axis) for axis in axes))
    cases = []
    for combination in combinations:
        number = sum(index for index, _ in combination)
        marks = [pytest.mark.slow] if number % one_in else []
        cases.append(pytest.param(*(value for _, value in combination), marks=marks))
    return pytest.mark.parametrize(names, cases)

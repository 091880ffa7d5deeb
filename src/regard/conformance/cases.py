"""Cases: the calls that a kernel is tried with, each with its exact results.

Sizes are primes, so that swapped axes and tiles that do not divide a length are detected. All numbers are multiples of
1/16 below 8, which every dtype represents exactly, so all dtypes share one exact result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final
from zlib import crc32

import numpy as np

from regard.arguments import explain_arguments
from regard.conformance.equations import Equation, Expected, directional_derivative
from regard.conformance.layout import Layout
from regard.fields import repr_of_fields


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class Case:
    """A call: an equation, its sizes and its arguments; ``every_dtype``: it is tried in half precision, too."""

    __repr__ = repr_of_fields

    name: str
    equation: Equation = field(repr=False)
    layout: Layout
    arguments: Mapping[str, Any]
    every_dtype: bool = False
    poison: str = ""
    """The kind of numbers behind the mask, if they were overwritten."""
    clean: Case | None = None
    """The case before that, whose exact results it has."""
    affected: np.ndarray | None = None
    """Queries (batch, heads, queries) that see overwritten numbers, and are not compared."""
    _slopes: dict[tuple[str, int], float] = field(default_factory=dict, repr=False)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arguments whose gradients are compared."""
        if self.affected is not None and self.affected.any():
            return ()
        return tuple(name for name in self.equation.inputs if self.arguments.get(name) is not None)

    @cached_property
    def upstream(self) -> np.ndarray:
        """A random gradient of the output (batch, heads, queries, value_dim)."""
        if self.clean is not None:
            return self.clean.upstream
        layout = self.layout
        return sixteenths(
            generator("upstream", self.name), layout.batch, layout.heads, layout.queries, layout.value_dim
        )

    @cached_property
    def expected(self) -> Expected:
        """The exact results; NaN is not compared."""
        if self.clean is None:
            return self.equation.compute(self.arguments, self.upstream)
        exact = self.clean.expected
        if self.affected is None or not self.affected.any():
            return exact
        assert exact.lse is not None
        output, lse = (
            np.where(self.affected[..., None], np.nan, exact.output),
            np.where(self.affected, np.nan, exact.lse),
        )
        return replace(exact, output=output, lse=lse, gradients={})

    def bounds(self, dtype: str) -> Mapping[str, float]:
        """The allowed error of each result, by its name."""
        return self.equation.bounds(self.clean or self, dtype)

    def slope(self, name: str, number: int, signs: np.ndarray) -> float:
        """The exact slope along direction ``number``, which has these ``signs``."""
        if (name, number) not in self._slopes:
            self._slopes[name, number] = directional_derivative(self, name, signs)
        return self._slopes[name, number]


def generator(*names: str) -> np.random.Generator:
    """Random numbers that follow from the names, the same ones on every machine."""
    return np.random.default_rng([crc32(name.encode()) for name in names])


def sixteenths(random: np.random.Generator, *shape: int, size: float = 1.0) -> np.ndarray:
    """Random numbers of about this size, rounded to multiples of 1/16 below 8."""
    return np.clip(np.round(random.normal(size=shape) * size * 16) / 16, -7.9375, 7.9375)


def make_tensors(layout: Layout, *names: str) -> dict[str, np.ndarray]:
    """Random query, key and value of a layout; the names are the seed."""
    random = generator(*names)
    return {
        "query": sixteenths(random, layout.batch, layout.heads, layout.queries, layout.head_dim),
        "key": sixteenths(random, layout.batch, layout.key_heads, layout.keys, layout.head_dim),
        "value": sixteenths(random, layout.batch, layout.key_heads, layout.keys, layout.value_dim),
    }

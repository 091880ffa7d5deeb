"""Test cases of a claim: every mask at every layout in the full suite, and a sample of them in every run.

A sample has each mask at one layout, or a part of the masks, and one round of a promise that has several. Samples
differ between claims, so every run detects a change that breaks all claims, or one mask, layout or dtype.
``make test-all`` runs all cases.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from conformance.claims import ALL_CLAIMS, Claim
from conformance.mask_cases import LAYOUTS, MASK_CASES, Layout, MaskCase


class Group(NamedTuple):
    """A layout, and the masks that are tested at it. ``number`` is the layout's index in LAYOUTS."""

    number: int
    layout: Layout
    mask_cases: tuple[MaskCase, ...]


class ClaimCase(NamedTuple):
    """A claim and its cases; ``complete``: it has all cases, so passing them proves the claim.

    ``number`` is the claim's index among the claims of its promise.
    """

    claim: Claim
    number: int
    groups: tuple[Group, ...]
    complete: bool

    def rounds(self, count: int) -> Sequence[int]:
        """Return the rounds to run: all ``count``, or one of them in a sample."""
        return range(count) if self.complete else (self.number % count,)


def parametrize_cases(promise: str, layouts: Sequence[Layout] = LAYOUTS) -> Any:
    """Parametrize a test over a promise's claims: with a sample of masks and layouts, and, marked slow, with all."""
    cases = []
    for number, claim in enumerate(claim for claim in ALL_CLAIMS if claim.promise == promise):
        marks = [pytest.mark.gpu] if claim.impl == "flex" else []
        name = "-".join(claim[1:])
        sample = ClaimCase(claim, number, sample_groups(claim, number, layouts), False)
        full = ClaimCase(claim, number, _all_groups(layouts), True)
        cases.append(pytest.param(sample, id=f"{name}-sample", marks=marks))
        cases.append(pytest.param(full, id=f"{name}-everything", marks=[*marks, pytest.mark.slow]))
    return pytest.mark.parametrize("case", cases)


def _all_groups(layouts: Sequence[Layout]) -> tuple[Group, ...]:
    return tuple(Group(LAYOUTS.index(layout), layout, MASK_CASES) for layout in layouts)


def sample_groups(claim: Claim, number: int, layouts: Sequence[Layout]) -> tuple[Group, ...]:
    """Select each mask at one layout in float32, and a third of the masks in other dtypes; ``number`` rotates both."""
    every = len(layouts) * (1 if claim.dtype == "float32" else 3)
    firsts = (-(place + number) % every for place in range(len(layouts)))
    return tuple(
        Group(LAYOUTS.index(layout), layout, MASK_CASES[first::every])
        for first, layout in zip(firsts, layouts, strict=True)
    )

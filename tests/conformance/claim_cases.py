"""What a claim is tried on: every mask at every layout by night, and a sample of them in every run.

A sample takes each mask at one layout, or a part of the masks, and one of the rounds of a promise that has several;
other claims take others: so what a change breaks for all claims, or for one mask, layout or dtype, is met in every run.
``make test-all`` tries everything.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from conformance.claims import ALL_CLAIMS, Claim
from conformance.mask_cases import LAYOUTS, MASK_CASES, Layout, MaskCase


class Group(NamedTuple):
    """A layout, and the masks that are tried at it. ``number`` is the layout's place among all of them."""

    number: int
    at: Layout
    mask_cases: tuple[MaskCase, ...]


class ClaimCase(NamedTuple):
    """A claim and what it is tried on; the claim is proved where that is ``everything``.

    ``number`` is the claim's place among those of its promise.
    """

    claim: Claim
    number: int
    groups: tuple[Group, ...]
    everything: bool

    def rounds(self, count: int) -> Sequence[int]:
        """The rounds to be made of this many: all, or in a sample one."""
        return range(count) if self.everything else (self.number % count,)


def parametrize_cases(promise: str, layouts: Sequence[Layout] = LAYOUTS) -> Any:
    """Run the test for each claim of a promise: on a sample of masks and layouts, and, marked slow, on all."""
    found = []
    for number, claim in enumerate(claim for claim in ALL_CLAIMS if claim.promise == promise):
        marks = [pytest.mark.gpu] if claim.impl == "flex" else []
        name = "-".join(claim[1:])
        sample = ClaimCase(claim, number, sample_groups(claim, number, layouts), False)
        everything = ClaimCase(claim, number, _all_groups(layouts), True)
        found.append(pytest.param(sample, id=f"{name}-sample", marks=marks))
        found.append(pytest.param(everything, id=f"{name}-everything", marks=[*marks, pytest.mark.slow]))
    return pytest.mark.parametrize("case", found)


def _all_groups(layouts: Sequence[Layout]) -> tuple[Group, ...]:
    return tuple(Group(LAYOUTS.index(at), at, MASK_CASES) for at in layouts)


def sample_groups(claim: Claim, number: int, layouts: Sequence[Layout]) -> tuple[Group, ...]:
    """In float32 each mask at one layout; in other dtypes a third of the masks. ``number`` turns both around."""
    every = len(layouts) * (1 if claim.dtype == "float32" else 3)
    firsts = (-(place + number) % every for place in range(len(layouts)))
    return tuple(
        Group(LAYOUTS.index(at), at, MASK_CASES[first::every]) for first, at in zip(firsts, layouts, strict=True)
    )

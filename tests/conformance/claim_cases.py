"""Test cases of a claim: every mask at every layout in the full suite, and a sample of them in every run.

Two of the four dtypes of each promise, mechanism and implementation have a sample: one wide and one half precision. The
sample of a claim has one mask that every mechanism supports, and its share of the others. Of the masks of a
mechanism, one half is drawn for the promises of ``FIRST_HALF`` and the other half for the other promises. Of the claims
that make one promise for one mechanism, with any implementation and dtype, one tests each mask of the half, at one
layout. Which one follows from their names alone, so a new mechanism, mask or claim moves only what it tests itself.
``test_claim_cases`` states what all samples cover together. ``make test-all`` runs all cases.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from conformance.claims import ALL_CLAIMS, DTYPES, Claim
from conformance.mask_cases import LAYOUTS, MASK_CASES, Layout, MaskCase

MASK_OF_EVERY_SAMPLE = {"empty rows": "padding of a whole sequence"}
"""Of a promise, if it is not padding: a mask that all mechanisms support, and that does what the promise is about."""

FIRST_HALF = ("hidden", "agreement")
"""Promises that are tested with the same masks of a mechanism by day."""


class Group(NamedTuple):
    """A layout, and the masks that are tested at it. ``number`` is the layout's index in LAYOUTS."""

    number: int
    layout: Layout
    mask_cases: tuple[MaskCase, ...]


class ClaimCase(NamedTuple):
    """A claim and its cases; ``complete``: it has all cases, so passing them proves the claim."""

    claim: Claim
    groups: tuple[Group, ...]
    complete: bool

    def rounds(self, count: int) -> Sequence[int]:
        """Return the rounds to run: all ``count``, or one of them in a sample."""
        return range(count) if self.complete else (_draw("round", *self.claim[:4]) % count,)


def parametrize_cases(promise: str, layouts: Sequence[Layout] = LAYOUTS) -> Any:
    """Parametrize a test over a promise's claims: with a sample of masks and layouts, and, marked slow, with all."""
    cases = []
    for claim in (claim for claim in ALL_CLAIMS if claim.promise == promise):
        marks, name = claim.marks, claim.name
        full = ClaimCase(claim, _all_groups(layouts), True)
        if claim in SAMPLED_CLAIMS:
            sample = ClaimCase(claim, sample_groups(claim, layouts), False)
            cases.append(pytest.param(sample, id=f"{name}-sample", marks=marks))
        cases.append(pytest.param(full, id=f"{name}-everything", marks=[*marks, pytest.mark.slow]))
    return pytest.mark.parametrize("case", cases)


def _all_groups(layouts: Sequence[Layout]) -> tuple[Group, ...]:
    return tuple(Group(LAYOUTS.index(layout), layout, MASK_CASES) for layout in layouts)


def sample_groups(claim: Claim, layouts: Sequence[Layout], claims: Sequence[Claim] | None = None) -> tuple[Group, ...]:
    """Select the sample of a claim, which shares the masks with the other ``claims`` of its mechanism and promise.

    ``claims`` are SAMPLED_CLAIMS, unless given.
    Claims of a GPU share the masks among themselves, so that other machines test the same samples without them.
    """
    claims = SAMPLED_CLAIMS if claims is None else claims
    sharing = [one for one in claims if one[:2] == claim[:2] and one.device == claim.device] or [claim]
    chosen: dict[int, list[MaskCase]] = {}
    for mask_case in MASK_CASES:
        of_every_sample = mask_case.name == MASK_OF_EVERY_SAMPLE.get(claim.promise, "padding")
        # The highest of random numbers, one for each claim: another claim takes only the masks that it wins.
        if of_every_sample or (
            _is_in_half(mask_case, claim)
            and claim == max(sharing, key=lambda one: _draw("mask", mask_case.name, *one[:4]))
        ):
            layout = _draw("layout", mask_case.name, *(claim[:4] if of_every_sample else claim[:2])) % len(layouts)
            chosen.setdefault(layout, []).append(mask_case)
    return tuple(Group(LAYOUTS.index(layouts[place]), layouts[place], tuple(chosen[place])) for place in sorted(chosen))


def _is_in_half(mask_case: MaskCase, claim: Claim) -> bool:
    """Whether the mask belongs to the half of masks with which the claim's promise is tested for its mechanism."""
    return _draw("half", mask_case.name, claim.mechanism) % 2 == int(claim.promise in FIRST_HALF)


def _draw(*names: str) -> int:
    """Draw a number that follows from the names, the same one on every machine."""
    return crc32("\0".join(names).encode())


def _is_sampled(claim: Claim) -> bool:
    """Whether the dtype is of the two that are drawn: float64 and bfloat16, or float32 and float16."""
    return _draw("dtypes", *claim[:3]) % 2 == list(DTYPES).index(claim.dtype) % 2


SAMPLED_CLAIMS = [claim for claim in ALL_CLAIMS if claim.promise != "refusals" and _is_sampled(claim)]
"""The claims that are tested by day, each with a sample of the masks; refusals are tested whole in every run."""

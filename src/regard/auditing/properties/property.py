"""A property: what it promises, whether a subject can be asked, and how it is tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from regard.auditing.calls import Comparison
from regard.auditing.compare import Outcome, compare_all, worst_of
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Subject


@final
@dataclass(frozen=True)
class Property:
    """A promise about outputs that are equal.

    Args:
        name: a short name, such as "padding right".
        promise: the sentence that holds or does not.
        cannot_ask: returns why a subject cannot be asked, or None.
        comparisons: makes pairs of outputs that the property promises to be equal.
        measure: measures in another way, in place of comparisons.
        is_quick: whether a quick audit tries it.
        is_strict: whether it is tried only by name and in a strict audit, since hardly any model has it.
        is_by_token: whether it is about outputs that belong to tokens.
    """

    name: str
    promise: str
    cannot_ask: Callable[[Subject], str | None]
    comparisons: Callable[[Subject], Sequence[Comparison]] | None = None
    measure: Callable[[Subject, NoiseFloor], Sequence[Outcome]] | None = None
    is_quick: bool = True
    is_strict: bool = False
    is_by_token: bool = False

    def try_on(self, subject: Subject, noise: NoiseFloor) -> tuple[Outcome, int]:
        """The worst outcome, and the number of outcomes."""
        if self.measure is not None:
            outcomes = self.measure(subject, noise)
            return worst_of(outcomes), len(outcomes)
        assert self.comparisons is not None
        comparisons = self.comparisons(subject)
        return compare_all(subject, comparisons, noise), len(comparisons)


def first_reason(*checks: Callable[[Subject], str | None]) -> Callable[[Subject], str | None]:
    """A check that returns the first reason of several."""

    def check(subject: Subject) -> str | None:
        return next((reason for check in checks if (reason := check(subject)) is not None), None)

    return check

"""The report of a check: what was tried, and for each case whether the results are right, and how they are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments

VERDICTS = ("right", "wrong", "refused", "not tried")


@final
@explain_arguments
@dataclass(frozen=True)
class Finding:
    """A result that is wrong: by how much, where, and how if that is known."""

    part: str
    error: float
    bound: float
    place: str = ""
    cause: str = ""

    def describe(self) -> str:
        """One sentence."""
        sentence = self.part
        if self.bound and self.error < float("inf"):
            sentence = f"{self.part}: off by {self.error:.1e}, allowed {self.bound:.1e}"
        elif self.bound:
            sentence = f"{self.part}: not finite, or of another shape, allowed {self.bound:.1e}"
        if self.cause:
            return f"{sentence}. {self.cause[0].upper()}{self.cause[1:]}"
        return f"{sentence}; {self.place}" if self.place else sentence


@final
@explain_arguments
@dataclass(frozen=True)
class Outcome:
    """A case in a dtype; ``reason`` says why it was refused or not tried."""

    case: str
    dtype: str
    verdict: str
    findings: tuple[Finding, ...] = ()
    reason: str = ""


@final
@explain_arguments
@dataclass(frozen=True)
class Report:
    """The outcomes of all cases, and the conventions of the function, as recognised."""

    function: str
    mechanism: str
    framework: str
    conventions: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether no result was wrong."""
        return not self.wrong

    @property
    def wrong(self) -> tuple[Outcome, ...]:
        """The cases with wrong results."""
        return tuple(outcome for outcome in self.outcomes if outcome.verdict == "wrong")

    def counts(self) -> Mapping[str, int]:
        """The number of cases of each verdict."""
        counted = Counter(outcome.verdict for outcome in self.outcomes)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    def causes(self) -> Mapping[str, tuple[str, ...]]:
        """The faults that were named, each with the cases that show it."""
        found: dict[str, list[str]] = {}
        for outcome in self.wrong:
            for finding in outcome.findings:
                if finding.cause:
                    found.setdefault(finding.cause, []).append(outcome.case)
        return {cause: tuple(dict.fromkeys(cases)) for cause, cases in found.items()}

    def to_json(self) -> dict[str, Any]:
        """All of it in values of JSON; an error without a number is null."""
        return {
            "function": self.function,
            "mechanism": self.mechanism,
            "framework": self.framework,
            "holds": self.holds,
            "conventions": list(self.conventions),
            "counts": dict(self.counts()),
            "causes": {cause: list(cases) for cause, cases in self.causes().items()},
            "outcomes": [_outcome_to_json(outcome) for outcome in self.outcomes],
        }

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {verdict}" for verdict, count in self.counts().items() if count)
        lines = [f"{self.function}: {counted}"]
        lines += [f"  {outcome.case} ({outcome.dtype}): {outcome.findings[0].describe()}" for outcome in self.wrong]
        return "\n".join(lines)


def _outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    findings = [
        {**vars(finding), "error": finding.error if finding.error < float("inf") else None}
        for finding in outcome.findings
    ]
    return {**vars(outcome), "findings": findings}

"""``BenchReport``: the result of a benchmark, and its JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from regard.arguments import explain_arguments
from regard.bench.choose_mechanisms import EXACT
from regard.bench.crossing import Crossing, find_crossing
from regard.bench.settings import BenchSettings
from regard.bench.timing import Timing
from regard.comparison import ComparisonSummary
from regard.errors import OptionError, short_repr


@final
@explain_arguments
@dataclass(frozen=True)
class BenchCase:
    """One mechanism at one length.

    ``time`` is the time of a call, ``joules`` its energy where the machine tells (``regard.energy``), ``peak_bytes``
    the memory that the call added to the process at its highest point, and ``error`` compares ``error_rows`` queries
    with exact attention. ``missing`` says why one of "time", "peak_bytes" and "error" is None; ``refused`` is why the
    mechanism refuses the case, and ``stopped`` the time limit in seconds at which the call was stopped.
    """

    mechanism: str
    length: int
    time: Timing | None = None
    peak_bytes: int | None = None
    error: ComparisonSummary | None = None
    error_rows: int = 0
    refused: str | None = None
    stopped: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    joules: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert to values that JSON has."""
        error = None
        if self.error is not None:
            error = {"rows": self.error_rows} | {
                name: finite_or_none(value) for name, value in asdict(self.error).items()
            }
        return {
            "mechanism": self.mechanism,
            "length": self.length,
            "seconds": None if self.time is None else asdict(self.time),
            "joules": self.joules,
            "peak_bytes": self.peak_bytes,
            "error": error,
            "refused": self.refused,
            "stopped_at_seconds": self.stopped,
            "missing": dict(self.missing),
        }


@final
@explain_arguments
@dataclass(frozen=True)
class BenchedMechanism:
    """A measured mechanism: its label with options, its name, and what an error against exact attention means for it.

    ``approximates`` is the mechanism that it approximates, None if it computes an equation of its own. ``untrained`` is
    the number of its parameters, which are random here. ``left_out`` names its inputs beside query, key and value, such
    as gates, which are not passed here. ``hides_later_keys`` says whether it is causal under any mask.
    """

    label: str
    name: str
    options: Mapping[str, Any]
    approximates: str | None
    weights_are: str
    untrained: int
    left_out: tuple[str, ...] = ()
    hides_later_keys: bool = False


@final
@explain_arguments
@dataclass(frozen=True)
class BenchReport:
    """The measurements of ``run``: settings, machine, mechanisms, and one case per mechanism and length.

    ``tokens`` says which tokens were measured, ``energy_missing`` why no energy was: None if it was. Mechanisms and
    cases are in the order of measurement, exact attention first.
    """

    settings: BenchSettings
    machine: Mapping[str, str | int]
    tokens: str
    mechanisms: tuple[BenchedMechanism, ...]
    cases: tuple[BenchCase, ...]
    energy_missing: str | None = None

    def case(self, mechanism: str, length: int) -> BenchCase:
        """Return the case of a mechanism, by its label or by a name that one label has, at a length.

        Raises OptionError for a mechanism or a length that was not measured.
        """
        label = self._label_of(mechanism)
        for case in self.cases:
            if (case.mechanism, case.length) == (label, length):
                return case
        raise OptionError(
            f"the length {short_repr(length)} was not measured",
            expected=", ".join(map(str, self.settings.lengths)),
            got=short_repr(length),
            do="choose one of the measured lengths, report.settings.lengths",
        )

    def _label_of(self, mechanism: str) -> str:
        labels = [benched.label for benched in self.mechanisms]
        named = [benched.label for benched in self.mechanisms if benched.name == mechanism]
        if mechanism in labels:
            return mechanism
        if len(named) == 1:
            return named[0]
        raise OptionError(
            f"the mechanism {short_repr(mechanism)} was {'measured with several options' if named else 'not measured'}",
            expected="one of the labels " + ", ".join(map(repr, named or labels)),
            got=short_repr(mechanism),
            do="a label has the options, such as 'longformer:window=16'",
        )

    def crossing(self, mechanism: str) -> Crossing:
        """Return from which length a mechanism is faster than exact attention; ``mechanism`` as for ``case``."""
        times = [_time_or_limit(self.case(mechanism, length)) for length in self.settings.lengths]
        exact = [_time_or_limit(self.case(EXACT, length)) for length in self.settings.lengths]
        return find_crossing(self.settings.lengths, times, exact)

    def to_json(self) -> dict[str, Any]:
        """Convert to values that JSON has."""
        return {
            "settings": asdict(self.settings),
            "machine": dict(self.machine),
            "tokens": self.tokens,
            "energy_missing": self.energy_missing,
            "exact": EXACT,
            "mechanisms": [
                asdict(mechanism)
                | {"faster": None if mechanism.label == EXACT else asdict(self.crossing(mechanism.label))}
                for mechanism in self.mechanisms
            ],
            "cases": [case.to_json() for case in self.cases],
        }


def _time_or_limit(case: BenchCase) -> Timing | float | None:
    return case.stopped if case.time is None else case.time


def finite_or_none(value: float) -> float | None:
    """A number that JSON has."""
    return value if math.isfinite(value) else None

"""Run one case: prepare it, compare every result with float64, time the contestants in turns, judge the targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks import peaks
from benchmarks.accuracy import Deviation
from benchmarks.case import OURS, Case, Contestant, PreparedCase
from benchmarks.targets import Verdict
from benchmarks.timing import Samples, time_interleaved
from regard.errors import RegardError

_REFUSAL_ERRORS = (RegardError, NotImplementedError)


@dataclass(frozen=True)
class CaseTime:
    """Seconds of one call (median and quartiles), its rate, and the largest deviation from float64."""

    seconds: float
    low: float
    high: float
    rounds: int
    rate: float
    deviation: float


@dataclass(frozen=True)
class PeakShare:
    """A measured peak of the machine, and each contestant's share of it."""

    rate: float
    low: float
    high: float
    shares: dict[str, float]


@dataclass(frozen=True)
class CaseResult:
    """Result of a case. ``refused`` and ``wrong`` are contestants that were not timed, with the reason."""

    name: str
    sizes: str
    line: str
    length: int
    unit: str
    work: float
    times: dict[str, CaseTime] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    peaks: dict[str, PeakShare] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)


def run(case: Case, *, contestants: Iterable[str], seconds: float) -> CaseResult:
    """Run a case with the named contestants that it has, or with its own if none is named."""
    try:
        prepared = case.prepare()
    except _REFUSAL_ERRORS as error:  # the expected result needs a library that is missing: the other cases still run
        reasons = dict.fromkeys(contestants or case.contestants, str(error).splitlines()[0])
        return CaseResult(case.name, case.sizes, case.line, case.length, "", 0.0, refused=reasons)
    names = [name for name in (contestants or case.contestants) if name in prepared.contestants]
    work = prepared.work
    result = CaseResult(case.name, case.sizes, case.line, case.length, work.unit, work.amount)
    ready: dict[str, Contestant] = {}
    sizes: dict[str, float] = {}
    for name in names:
        try:
            contestant = prepared.contestants[name]()
            found = list(contestant.deviations())
        except _REFUSAL_ERRORS as error:
            result.refused[name] = str(error).splitlines()[0]
            continue
        except Exception as error:  # any error: the other contestants and cases must still run
            result.wrong[name] = f"failed with {type(error).__name__}: {error}"
            continue
        bad = [_describe_deviation(one) for one in found if one.is_wrong]
        if bad:
            result.wrong[name] = "; ".join(bad)
            continue
        ready[name], sizes[name] = contestant, max(one.size for one in found)
    if ready:
        _time_contestants(case, prepared, ready, sizes, result, seconds)
    return result


def _time_contestants(
    case: Case,
    prepared: PreparedCase,
    ready: dict[str, Contestant],
    sizes: dict[str, float],
    result: CaseResult,
    seconds: float,
) -> None:
    """Fill in times, shares of peaks, and verdicts."""
    work = prepared.work
    probes = {peak.name: probe for peak in work.peaks if (probe := peaks.make_probe(peak)) is not None}
    calls = {name: contestant.run for name, contestant in ready.items()}
    before = {name: contestant.before for name, contestant in ready.items() if contestant.before is not None}
    times, rates = time_interleaved(calls, probes, seconds=seconds, before=before)
    amount = work.amount / work.step
    for name, taken in times.items():
        result.times[name] = CaseTime(
            taken.median, taken.low, taken.high, len(taken.values), amount / taken.median, sizes[name]
        )
    for peak, rate in rates.items():
        shares = {name: amount / taken.median / rate.median for name, taken in times.items()}
        result.peaks[peak] = PeakShare(rate.median, rate.low, rate.high, shares)
    if OURS in times:
        result.verdicts.extend(_judge_targets(case, times, rates, amount))


def _judge_targets(case: Case, times: dict[str, Samples], rates: dict[str, Samples], amount: float) -> list[Verdict]:
    judged = (target.judge(times[OURS], times, rates, amount) for target in case.targets)
    return [verdict for verdict in judged if verdict is not None]


def _describe_deviation(deviation: Deviation) -> str:
    return f"{deviation.what} is off by {deviation.size:.2g}, allowed {deviation.allowed:.2g}"

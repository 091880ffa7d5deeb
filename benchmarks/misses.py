"""Whether a target was reached on a machine; if not, whether there is a reason.

    restated     a ratio that would take more than 70% of the machine's peak is replaced by that share of its bound, or
                 by 1 where that is more: regard is to be no slower than the other where the peak allows it
    in rounds    a target that at least a quarter of the rounds reached is neither reached nor missed
    explained    what limits regard there is known, or it computes at least as fast as torch multiplies two matrices
    outdated     measured before a change of the kernels that was made for such cases

A miss of none of these kinds is unexplained: the page lists all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

from benchmarks.case import OURS
from benchmarks.peaks import MATRIX_PRODUCT

REACHABLE_SHARE = 0.7
"""The largest share of the machine's peak that a ratio of times may ask for."""

Kind = Literal["reached", "in rounds", "explained", "outdated", "unexplained"]


@final
@dataclass(frozen=True)
class Reason:
    """Why targets of some cases are missed: those of ``suites`` on a ``machine``, with all ``words`` in their names.

    Cases with one of the words ``but`` have another reason, or none; ``against`` is the contestant of the target.
    ``machine`` is the end of a processor's name. ``before`` is the date of a change of the kernels: earlier rows are
    outdated. An empty field fits every case.
    """

    text: str
    suites: tuple[str, ...]
    words: frozenset[str] = frozenset()
    but: frozenset[str] = frozenset()
    against: str = ""
    machine: str = ""
    before: str = ""

    def fits(self, found: dict[str, Any], case: str, suite: str, measured: dict[str, Any]) -> bool:
        """Whether it is the reason for a verdict of a case."""
        return (
            suite in self.suites
            and self.words <= set(case.split())
            and self.but.isdisjoint(case.split())
            and self.against in ("", found.get("against"))
            and measured["machine"]["processor"].endswith(self.machine)
            and (not self.before or measured["date"] < self.before)
        )


REASONS = (
    Reason(
        "measured before bfloat16 was computed by this processor's matrix unit",
        ("forward", "training", "shapes", "short", "window"),
        frozenset({"bf16"}),
        machine="family 6 model 207",
        before="2026-11-26",
    ),
    Reason(
        "measured before decoding and backward passes were divided into 128 tasks, and a call of several steps became "
        "one parallel region",
        ("decode", "generation", "training"),
        before="2026-11-30",
    ),
    Reason(
        "with 16 tokens most of the time is taken by memory, which is newly allocated, and not by the operations of "
        "the bound",
        ("short",),
        frozenset({"training", "16"}),
    ),
    Reason(
        "with AVX2 an exact product of 32 bytes takes four instructions; torch rounds tokens to 7 bits, and takes "
        "three: in loops of these alone regard's products have 0.73 of the rate",
        ("few-bits",),
        frozenset({"int8"}),
        but=frozenset({"1"}),
        against="torch-int8",
        machine="family 25 model 1",
    ),
    Reason(
        "a call with 16 keys takes 0.28 ms here after 100 MB of other memory were read (torch's 0.14), since its code "
        "and data come from memory, too; a model calls its decoder once for all layers",
        ("decode",),
        frozenset({"batch-1", "4096", "memory"}),
        but=frozenset({"grouped"}),
        machine="family 25 model 1",
    ),
    Reason(
        "torch's matrix products take three quarters of the step, in regard too",
        ("translator",),
        machine="family 6 model 207",
    ),
)


AS_FAST_AS_A_PRODUCT = "regard's rate is at least that of torch's product of two float32 matrices, in the same seconds"
AS_FAST_BUT_FOR_EXPONENTIALS = (
    "regard's rate is at least 90% of that of torch's product of two float32 matrices, in the same seconds; the rest "
    "is as much as the exponentials take, which are not counted as operations"
)
_HAVE_EXPONENTIALS = ("forward", "training", "short", "shapes", "window", "softcap-sinks", "sigmoid", "observe")
"""Suites whose operations are those of the products alone; an exponential takes a tenth of the time of its products."""


@final
@dataclass(frozen=True)
class Outcome:
    """What became of a target: ``asked`` is the value that was judged, ``reason`` the words of a kind with reasons."""

    kind: Kind
    asked: float
    is_restated: bool
    reason: str = ""


def judge(found: dict[str, Any], case: dict[str, Any], suite: str, measured: dict[str, Any]) -> Outcome:
    """Judge a verdict of a case as it is in the results."""
    bound = speed_bound(found, case)
    reachable = found["asked"] if bound is None else max(REACHABLE_SHARE * bound, 1.0 if bound >= 1.0 else 0.0)
    is_restated = not found["reached"] and reachable < found["asked"]
    asked = reachable if is_restated else found["asked"]
    if found["reached"] or (is_restated and found["got"] >= asked):
        return Outcome("reached", asked, is_restated)
    if found["low"] <= asked if found["kind"] == "no longer" else found["high"] >= asked:
        return Outcome("in rounds", asked, is_restated)
    share = 0.0 if found["kind"] == "no longer" else _share_of_product(case)
    if share >= 1.0:
        return Outcome("explained", asked, is_restated, AS_FAST_AS_A_PRODUCT)
    if share >= 0.9 and suite in _HAVE_EXPONENTIALS:
        return Outcome("explained", asked, is_restated, AS_FAST_BUT_FOR_EXPONENTIALS)
    reason = next((reason for reason in REASONS if reason.fits(found, case["name"], suite, measured)), None)
    if reason is None:
        return Outcome("unexplained", asked, is_restated)
    return Outcome("outdated" if reason.before else "explained", asked, is_restated, reason.text)


def _share_of_product(case: dict[str, Any]) -> float:
    """Return regard's rate as a share of the rate of torch's product of matrices; 0 if that was not measured."""
    product = case["peaks"].get(MATRIX_PRODUCT.name)
    return 0.0 if product is None else float(product["shares"].get(OURS, 0.0))


def speed_bound(found: dict[str, Any], case: dict[str, Any]) -> float | None:
    """Return how many times as fast as the other contestant regard would be at the machine's peak rate.

    That is the other's time divided by the time of the case's operations, or bytes, at the peak: the largest ratio that
    any code for them reaches. None for other targets, without a peak, and for bytes that come faster, from a cache.
    """
    peak = next(iter(case["peaks"].values()), None)
    share_of_peak = 0.0 if peak is None or found["kind"] != "faster" else peak["shares"].get(OURS, 0.0)
    return float(found["got"] / share_of_peak) if 0.0 < share_of_peak < 1.0 else None

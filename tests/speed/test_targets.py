"""Medians, ratios, targets and scaling, computed by hand."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

import regard
from benchmarks import formatting, misses, peaks
from benchmarks.case import Case, ScalingTarget, Suite
from benchmarks.scaling import ScalingResult, growth_factor, judge_time_scaling
from benchmarks.suites import long_inputs
from benchmarks.targets import Faster, MaxTimeRatio, ShareOfPeak
from benchmarks.timing import Samples, time_interleaved
from regard import masks

OURS, THEIRS = Samples((1.0, 2.0, 3.0)), Samples((2.0, 6.0, 4.0))


def test_samples_have_a_median_and_quartiles() -> None:
    samples = Samples((5.0, 1.0, 2.0, 4.0, 3.0))
    assert (samples.low, samples.median, samples.high) == (2.0, 3.0, 4.0)
    assert (Samples((7.0,)).low, Samples((7.0,)).median) == (7.0, 7.0)


def test_ratios_are_taken_within_rounds() -> None:
    assert THEIRS.ratio_to(OURS).values == (2.0, 3.0, 4.0 / 3.0)


def test_faster_compares_medians() -> None:
    verdict = Faster("sdpa", 2.0).judge(OURS, {"sdpa": THEIRS}, {}, 1.0)
    assert verdict is not None
    assert (verdict.got, verdict.reached) == (2.0, True)
    missed = Faster("sdpa", 2.1).judge(OURS, {"sdpa": THEIRS}, {}, 1.0)
    assert missed is not None
    assert not missed.reached
    assert Faster("flex", 2.0).judge(OURS, {"sdpa": THEIRS}, {}, 1.0) is None


def test_max_time_ratio_compares_medians() -> None:
    verdict = MaxTimeRatio("sdpa", 0.5).judge(OURS, {"sdpa": THEIRS}, {}, 1.0)
    assert verdict is not None
    assert (verdict.got, verdict.reached) == (0.5, True)


def test_a_share_of_peak_is_work_over_time_over_peak() -> None:
    peaks = {"multiply-add": Samples((10.0, 10.0, 20.0)), "read": Samples((1.0, 1.0, 1.0))}
    verdict = ShareOfPeak(0.8).judge(OURS, {}, peaks, 18.0)
    assert verdict is not None
    assert (verdict.against, verdict.got, verdict.reached) == ("multiply-add", 0.9, True)
    assert ShareOfPeak(0.8).judge(OURS, {}, {}, 18.0) is None


def test_contestants_are_timed_in_alternating_order() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in ("one", "two")}
    times, rates = time_interleaved(calls, {"peak": lambda: 3.0}, seconds=0.0)
    assert {len(one.values) for one in times.values()} == {3}
    assert rates["peak"].values == (3.0, 3.0, 3.0)
    turns = [name for name, before in zip(order, [None, *order], strict=False) if name != before]
    assert turns[-4:] == ["one", "two", "one", "two"]  # one two, two one, one two: the same name twice is one turn


def test_what_comes_before_a_turn_is_not_timed() -> None:
    order: list[str] = []
    times, _ = time_interleaved(
        {"one": lambda: order.append("one") or time.sleep(0.02)},
        {},
        seconds=0.0,
        before={"one": lambda: order.append("before") or time.sleep(0.2)},
    )
    assert order == ["before", "one"] * (1 + len(times["one"].values))
    assert max(times["one"].values) < 0.2


@pytest.mark.parametrize(
    ("peaks", "factor"), [([1e8, 2e8, 4e8], 1.0), ([1e8, 1.5e8, 2.6e8], 0.65), ([1e8, 4e8, 16e8], 4.0)]
)
def test_growth_factor_is_relative_to_the_length(peaks: list[float], factor: float) -> None:
    assert growth_factor(peaks, (10, 20, 40)) == pytest.approx(factor)


def make_suite(*lengths: int) -> Suite:
    def nothing() -> None:
        raise AssertionError("not prepared here")

    cases = tuple(Case(f"case {length}", "", nothing, ("native",), length=length) for length in lengths)
    return Suite("suite", "Title", "Description.", cases)


@pytest.mark.parametrize(("last", "linear"), [(8.0, True), (9.9, True), (10.1, False), (64.0, False)])
def test_time_that_grows_with_the_length_is_linear(last: float, linear: bool) -> None:
    growth = ScalingTarget("time", ("case 10", "case 80"))
    scaling_result = judge_time_scaling(
        growth, make_suite(10, 80), {"case 10": {"native": 1.0}, "case 80": {"native": last}}
    )
    assert scaling_result is not None
    assert scaling_result.linear == {"native": linear}
    assert judge_time_scaling(growth, make_suite(10, 80), {"case 10": {"native": 1.0}}) is None


def test_numbers_are_formatted_with_three_digits() -> None:
    assert formatting.seconds(0.0123456) == "12.3 ms"
    assert formatting.seconds(1.999) == "2.00 s"
    assert formatting.seconds(8.76e-5) == "87.6 µs"
    assert formatting.rate(1234.5, "GFLOP/s") == "1,234 GFLOP/s"
    assert (formatting.share(0.853), formatting.share(0.0123)) == ("85%", "1.23%")


def test_scaling_result_is_formatted_in_one_line() -> None:
    scaling_result = ScalingResult(
        "memory", ("fp32 t5 2", "fp32 t5 4"), (2, 4), {"native": [1e6, 2e6]}, {}, {"native": True}, 1.25
    )
    assert formatting.scaling_lines(vars(scaling_result)) == [
        "✓ memory of fp32 t5, regard: linear; 1 MB at 2, 2 MB at 4"
    ]


def test_other_load_on_the_machine_is_reported() -> None:
    cases = [{"name": name, "peaks": {"read": {"rate": rate}}} for name, rate in (("a", 10.0), ("b", 9.5), ("c", 5.0))]
    assert formatting.load_warnings({"cases": cases}) == [
        "The machine had other load: the peak of read was lower in c (50%)."
    ]


MEASURED = {"machine": {"processor": "a processor"}, "date": "2026-12-01"}


def make_miss(asked: float, got: float, share: float, **fields) -> tuple[dict, dict]:
    """A missed ratio, and its case, in which regard has a share of the peak."""
    found = {"kind": "faster", "against": "sdpa", "asked": asked, "got": got, "low": got, "high": got, "reached": False}
    return found | fields, {"name": "a case", "peaks": {"multiply-add": {"shares": {"native": share}}}}


def test_a_missed_ratio_is_followed_by_its_bound_at_the_peak() -> None:
    found, case = make_miss(5.0, 3.0, 0.375)  # at the peak it would take 3/8 of its time
    text = formatting.verdict(found, case, "forward", MEASURED)
    assert text == "✗ 3.00x as fast as torch SDPA (≥ 5x, at the peak 8.00x)"
    for unknown in ({}, {"read": {"shares": {"native": 1.2}}}):
        text = formatting.verdict(found, case | {"peaks": unknown}, "forward", MEASURED)
        assert text == "✗ 3.00x as fast as torch SDPA (≥ 5x)"
    text = formatting.verdict(found | {"reached": True}, case, "forward", MEASURED)
    assert text == "✓ 3.00x as fast as torch SDPA (≥ 5x)"


@pytest.mark.parametrize(("got", "share", "mark"), [(3.0, 0.75, "✓"), (3.0, 0.69, "✗")])
def test_a_ratio_near_or_above_its_bound_is_replaced_by_a_share_of_the_bound(got: float, share: float, mark) -> None:
    found, case = make_miss(5.0, got, share)
    asked = 0.7 * got / share
    text = formatting.verdict(found, case, "forward", MEASURED)
    assert text == f"{mark} {got:.2f}x as fast as torch SDPA (≥ {asked:.2f}x, 70% of the bound; set as 5x)"


def test_a_restated_ratio_is_at_least_1_where_the_peak_allows_it() -> None:
    found, case = make_miss(1.8, 0.96, 0.75)  # its bound is 1.28
    assert misses.judge(found, case, "short", MEASURED) == misses.Outcome("unexplained", 1.0, True)
    found, case = make_miss(1.8, 0.5, 0.6)  # its bound is 0.83
    assert misses.judge(found, case, "short", MEASURED).asked == pytest.approx(0.7 * 0.5 / 0.6)


def test_a_miss_has_a_reason_if_rounds_reached_it_or_one_is_stated(monkeypatch) -> None:
    found, case = make_miss(2.0, 1.9, 0.1)
    assert misses.judge(found, case, "short", MEASURED).kind == "unexplained"
    assert misses.judge(found | {"high": 2.0}, case, "short", MEASURED).kind == "in rounds"
    longer = found | {"kind": "no longer", "asked": 1.0, "low": 1.1}
    assert misses.judge(longer, case, "short", MEASURED).kind == "unexplained"
    assert misses.judge(longer | {"low": 1.0}, case, "short", MEASURED).kind == "in rounds"
    change = misses.Reason("a change", ("short",), frozenset({"case"}), machine="processor", before="2026-12-02")
    monkeypatch.setattr(misses, "REASONS", (change,))
    assert misses.judge(found, case, "short", MEASURED) == misses.Outcome("outdated", 2.0, False, "a change")
    for other in (MEASURED | {"date": "2026-12-02"}, MEASURED | {"machine": {"processor": "another"}}):
        assert misses.judge(found, case, "short", other).kind == "unexplained"
    assert misses.judge(found, case, "forward", MEASURED).kind == "unexplained"
    monkeypatch.setattr(misses, "REASONS", (replace(change, but=frozenset({"a"})),))
    assert misses.judge(found, case, "short", MEASURED).kind == "unexplained"


@pytest.mark.parametrize(
    ("share", "suite", "kind"),
    [
        (1.0, "linear", "explained"),
        (0.99, "linear", "unexplained"),
        (0.9, "short", "explained"),  # the exponentials take the rest
        (0.89, "short", "unexplained"),
    ],
)
def test_a_miss_at_the_rate_of_a_product_of_matrices_has_that_as_its_reason(
    share: float, suite: str, kind: str
) -> None:
    found, case = make_miss(2.0, 1.9, 0.1)
    case["peaks"]["matrix product fp32"] = {"shares": {"native": share}}
    for of_kind in (found, found | {"kind": "share of peak", "against": "multiply-add"}):
        assert misses.judge(of_kind, case, suite, MEASURED).kind == kind
    longer = found | {"kind": "no longer", "asked": 1.0, "low": 1.1}
    assert misses.judge(longer, case, "short", MEASURED).kind == "unexplained"


def test_the_rate_of_a_product_is_that_of_its_operations(monkeypatch) -> None:
    if peaks.make_probe(peaks.MATRIX_PRODUCT) is None:
        return  # without a compiler there are no peaks
    clock = iter((1.0, 3.0))
    monkeypatch.setattr(peaks, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    measure = peaks.make_probe(peaks.MATRIX_PRODUCT)
    assert measure is not None
    assert measure() == 2 * 1024**3 / 2 / 1e9


def test_pairs_of_long_inputs_are_those_of_the_masks() -> None:
    length = 1024
    window = masks.window(long_inputs.WINDOW // 2, long_inputs.WINDOW // 2).dense(length, length)
    assert long_inputs._count_window_pairs(length) == int(window.sum())
    options = {"block": long_inputs.BLOCK, "random_blocks": long_inputs.RANDOM_BLOCKS}
    bigbird = regard.mechanism("bigbird", heads=2, head_dim=4, **options)
    assert long_inputs._count_bigbird_pairs(length) * 2 == int(bigbird.pattern(length).dense(length, length).sum())

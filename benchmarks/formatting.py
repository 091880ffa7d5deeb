"""Format numbers and verdicts, equally for the terminal and the page."""

from __future__ import annotations

from typing import Any

from benchmarks import misses
from benchmarks.attention_baselines import LABELS

_MIN_PEAK_SHARE = 0.9
"""A peak rate below this share of the suite's highest is reported: the machine had other load."""


def seconds(value: float) -> str:
    """Format a time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{_three_digits(value * 1e6)} µs"


def rate(value: float, unit: str) -> str:
    """Format a rate with three digits."""
    return f"{_three_digits(value)} {unit}"


def rate_and_shares(case: dict[str, Any], name: str | None) -> tuple[str, str]:
    """Format the rate of a contestant of a case, and its shares of the machine's peaks; nothing without one."""
    if name is None:
        return "", ""
    shares = [share(peak["shares"][name]) for peak in case["peaks"].values()]
    return rate(case["times"][name]["rate"], case["unit"]), ", ".join(shares)


def share(value: float) -> str:
    """Format a share in per cent, without decimals unless it is small."""
    return f"{value:.0%}" if value >= 0.1 else f"{value:.2%}"


def spread(time: dict[str, Any]) -> str:
    """Format half of the interquartile range, as a share of the median."""
    return f"±{(time['high'] - time['low']) / 2 / time['seconds']:.0%}"


def threads(machine: dict[str, Any]) -> str:
    """Format the number of threads of a measurement, as in "1 thread" or "2 threads"."""
    return "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"


def verdict(found: dict[str, Any], case: dict[str, Any], suite: str, measured: dict[str, Any]) -> str:
    """Format a verdict of a case: a mark, the measured value, and the target in brackets.

    The mark is in brackets if there is a reason for the miss. A missed ratio also has its bound.
    """
    outcome = misses.judge(found, case, suite, measured)
    mark = {"reached": "✓", "unexplained": "✗"}.get(outcome.kind, "(✗)")
    label = LABELS.get(found["against"], found["against"])
    if found["kind"] == "faster":
        bound = misses.speed_bound(found, case)
        if outcome.is_restated and bound is not None:
            limit = f", {share(outcome.asked / bound)} of the bound; set as {found['asked']:g}x"
        else:
            limit = "" if found["reached"] or bound is None else f", at the peak {bound:.2f}x"
        asked = f"{outcome.asked:.2f}" if outcome.is_restated else f"{outcome.asked:g}"
        return f"{mark} {found['got']:.2f}x as fast as {label} (≥ {asked}x{limit})"
    if found["kind"] == "no longer":
        return f"{mark} {factor(found['got'])} the time of {label} (≤ {factor(found['asked'])})"
    return f"{mark} {share(found['got'])} of {found['against']} (≥ {share(found['asked'])})"


def factor(value: float) -> str:
    """Format a factor, or per cent if it is below a half."""
    return f"{value:.2f}x" if value >= 0.5 else f"{value:.2%}"


def scaling_lines(found: dict[str, Any]) -> list[str]:
    """Return a line per contestant, with the value at each length."""
    lines = []
    kind = found["cases"][0].rsplit(" ", 1)[0]
    for name, measured in found["measured"].items():
        mark = "✓" if found["linear"][name] else "✗"
        values = [seconds(one) if found["what"] == "time" else f"{one / 1e6:.0f} MB" for one in measured]
        steps = ", ".join(f"{text} at {length:,}" for text, length in zip(values, found["lengths"], strict=True))
        word = "linear" if found["linear"][name] else "not linear"
        lines.append(f"{mark} {found['what']} of {kind}, {LABELS.get(name, name)}: {word}; {steps}")
    for name, reason in found["missing"].items():
        lines.append(f"✗ {found['what']} of {kind}, {LABELS.get(name, name)}: not measured, {reason}")
    return lines


def load_warnings(found: dict[str, Any]) -> list[str]:
    """Return a sentence for each peak rate that was far below its highest in some cases, with those cases."""
    warnings = []
    for name in dict.fromkeys(name for case in found["cases"] for name in case["peaks"]):
        rates = {case["name"]: case["peaks"][name]["rate"] for case in found["cases"] if name in case["peaks"]}
        highest = max(rates.values())
        low = [f"{case} ({share(rate / highest)})" for case, rate in rates.items() if rate < _MIN_PEAK_SHARE * highest]
        if low:
            warnings.append(f"The machine had other load: the peak of {name} was lower in {', '.join(low)}.")
    return warnings


def _three_digits(value: float) -> str:
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"

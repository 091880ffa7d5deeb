"""Results as JSON: one file per machine; each suite in it has the time, machine and versions of its measurement."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import atomic_write, machine, peaks
from benchmarks.scaling import ScalingResult

FOLDER = Path(__file__).with_name("results")
FORMAT = 1


def describe_measurement(seconds: float) -> dict[str, Any]:
    """Describe a measurement: date, machine, versions, peaks and seconds per case."""
    moment = datetime.now(UTC)
    return {
        "date": moment.date().isoformat(),
        "time": moment.strftime("%H:%M"),
        "seconds a case": seconds,
        "machine": machine.machine(),
        "versions": machine.versions(),
        "peaks": peaks.measure_peaks(),
    }


def suite_to_json(
    rows: Iterable[dict[str, Any]], grown: Iterable[ScalingResult], measured: dict[str, Any]
) -> dict[str, Any]:
    """The results of a suite as JSON types. Its texts are not stored: reports take them from the suite."""
    return {
        "measured": measured,
        "cases": list(rows),
        "growth": [asdict(one) for one in grown],
    }


def results_path() -> Path:
    """Return the path of this machine's results."""
    return FOLDER / f"{machine.slug()}.json"


def read(path: Path) -> dict[str, Any]:
    """Read a results file; an empty report if it does not exist."""
    if not path.exists():
        return {"format": FORMAT, "families": {}}
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def read_all() -> list[dict[str, Any]]:
    """Read the results of every machine, with the name of their file."""
    return [read(file) | {"slug": file.stem} for file in sorted(FOLDER.glob("*.json"))]


def write(path: Path, suites: dict[str, Any], kernels: dict[str, str]) -> None:
    """Replace the suites of the same names in the file; other suites are kept.

    ``kernels`` are the hashes of the sources of every suite now, by which pages find results of earlier kernels.
    """
    report = read(path)
    report["families"] |= suites
    report["kernel sources"] = kernels
    atomic_write.write(path, json.dumps(_round_floats(report), indent=1) + "\n")


def write_busy(busy: dict[str, Any]) -> None:
    """Replace this machine's times beside busy processes; everything else in its file is kept."""
    path = results_path()
    report = read(path) | {"busy": busy}
    atomic_write.write(path, json.dumps(_round_floats(report), indent=1) + "\n")


def _round_floats(value: Any) -> Any:
    """Round to five digits, more than are significant in a time."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _round_floats(one) for key, one in value.items()}
    return [_round_floats(one) for one in value] if isinstance(value, list | tuple) else value

"""The section of docs/speed.md on devices: a table for each measurement of each device, or that none was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_HEADING = """\
## GPUs and other devices

Measured by `make gpu`, in [pieces that resume](devices.md#measuring-a-device). A result that differs from float64 gets
no time. Times are medians; rates stand beside those that torch reaches in the same process, in a product of matrices
and in a copy.
"""
_NONE = "**No device was measured yet.** What runs on one is tested on a simulated device; it has no figures.\n"
_STAND_IN = "cpu-as-a-stand-in"


def render_devices(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """The lines of the section; results of a CPU that stands in for a device are left out."""
    yield _HEADING
    devices = {name: pieces for name, pieces in results.items() if name != _STAND_IN}
    if not devices:
        yield _NONE
    for pieces in devices.values():
        yield from _render_device(pieces)


def _render_device(pieces: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    newest = max(pieces, key=lambda piece: str(piece["date"]))
    versions = newest["versions"]
    yield f"### {newest['device']}\n"
    yield f"{newest['date']}, regard {versions['commit'] or versions['regard']}, torch {versions['torch']}.\n"
    tested = [piece for piece in pieces if "tests" in piece]
    if tested:
        passed, failed = (sum(piece["tests"].get(key, 0) for piece in tested) for key in ("passed", "failed"))
        yield f"Tests on the device: {passed:,} passed, {failed:,} failed, in {len(tested)} pieces.\n"
        yield from (f"- failed: `{failure}`" for piece in tested for failure in piece["failures"])
        yield ""
    for piece in pieces:
        if "measured" in piece:
            yield from _render_measurement(piece)


def _render_measurement(piece: Mapping[str, Any]) -> Iterator[str]:
    measured = piece["measured"]
    names = list(
        dict.fromkeys(name for row in measured["rows"] for part in ("times", "refused", "wrong") for name in row[part])
    )
    peaks = measured["peaks"]
    yield f"#### {piece['piece'].capitalize()}\n"
    yield (
        f"{measured['dtype']}; torch's product of matrices {peaks['operations per second'] / 1e12:,.1f} TFLOP/s, copy "
        f"{peaks['bytes per second'] / 1e9:,.0f} GB/s.\n"
    )
    yield f"| case | length | {' | '.join(names)} | TFLOP/s of the first | share of the product's rate |"
    yield "|---" * (len(names) + 4) + "|"
    for row in measured["rows"]:
        cells = [_render_cell(row, name) for name in names]
        yield f"| {row['case']} | {row['length']:,} | {' | '.join(cells)} | {_render_rate(row, names[0], peaks)} |"
    reasons = {
        f"{name}: {reason}"
        for row in measured["rows"]
        for name, reason in [*row["refused"].items(), *row["wrong"].items()]
    }
    yield ""
    yield from (f"- {reason}" for reason in sorted(reasons))
    yield ""


def _render_cell(row: Mapping[str, Any], name: str) -> str:
    if name in row["wrong"]:
        return "wrong"
    if name not in row["times"]:
        return "-"
    text = f"{1000 * row['times'][name]['seconds']:,.3f} ms"
    peak = row["peak bytes"].get(name)
    return text if peak is None else f"{text}, {peak / 1e6:,.0f} MB"


def _render_rate(row: Mapping[str, Any], name: str, peaks: Mapping[str, float]) -> str:
    if not row["operations"] or name not in row["times"]:
        return "- | -"
    rate = row["operations"] / row["times"][name]["seconds"]
    return f"{rate / 1e12:,.1f} | {100 * rate / peaks['operations per second']:.0f} %"

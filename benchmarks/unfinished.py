"""Rows of a suite that a run began and did not finish: the next run with ``--missing`` goes on behind them.

    results/<machine>.<suite>.part    {"kernel sources", "seconds a case", "cases": [rows as in the results]}

A row is complete in itself, since a case times all its contestants in turns, beside the peaks of that minute.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import atomic_write

_SAME = ("kernel sources", "seconds a case")
"""What rows of two runs must have in common to belong to one suite."""


def rows_path(target: Path, suite: str) -> Path:
    """The file of the rows of a suite, beside the results ``target``."""
    return target.with_name(f"{target.stem}.{suite}.part")


def read_rows(path: Path, measured: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that were kept, if they are of the same kernels and of as many seconds; else none."""
    if not path.exists():
        return []
    kept = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = kept["cases"]
    return rows if all(kept[name] == measured[name] for name in _SAME) else []


def write_rows(path: Path, measured: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Keep the rows so far."""
    kept = {name: measured[name] for name in _SAME} | {"cases": list(rows)}
    atomic_write.write(path, json.dumps(kept, indent=1) + "\n")

"""What the results of this machine lack: whole suites, some of their cases, or rows measured with other kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.case import Case


def why_missing(found: Mapping[str, Any] | None, cases: Sequence[Case], kernel_sources: str) -> str | None:
    """Why a suite with these cases should be measured; None if ``found``, its results, are complete and of today."""
    if found is None:
        return "no rows"
    measured = {case["name"] for case in found["cases"]}
    lacking = [case.name for case in cases if case.name not in measured]
    if lacking:
        return f"no row for {len(lacking)} of {len(cases)} cases"
    date = found["measured"]["date"]
    return None if found["measured"].get("kernel sources") == kernel_sources else f"older kernels, of {date}"

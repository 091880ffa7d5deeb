"""The certificate of an audit: a file that can be committed beside a model, the same text for the same audit.

Differences are written as powers of ten, so that another processor, which rounds otherwise, writes the same text.
"""

from __future__ import annotations

import json
import math
from typing import Any

from regard.auditing.results import AuditReport, PropertyResult

FORMAT = "regard audit certificate, version 1"


def make_certificate(report: AuditReport) -> str:
    """The verdict of each property, and the versions, hashes and seed by which it can be tried again."""
    noise = report.noise
    certificate: dict[str, Any] = {
        "format": FORMAT,
        "model": report.model,
        "kind": report.kind,
        "verdict": {0: "holds", 1: "leaks", 2: "nothing could be asked"}[report.exit_code],
        "tokens": report.length,
        "seed": report.seed,
        "precision": noise.precision if noise is not None else "",
        "notes": list(report.notes),
        "properties": {result.name: _entry(result) for result in report.results},
        "fingerprint": dict(report.fingerprint),
    }
    return json.dumps(certificate, indent=1, ensure_ascii=False) + "\n"


def _entry(result: PropertyResult) -> dict[str, Any]:
    entry: dict[str, Any] = {"promise": result.promise, "verdict": result.verdict}
    if result.reason:
        entry["reason"] = result.reason
    if result.leak is not None and result.difference is not None:
        size = math.log10(result.difference) if 0 < result.difference < math.inf else math.inf
        entry["difference"] = f"1e{round(size)}" if size < math.inf else "not finite"
        entry |= {"change": result.leak.change, "begins_in": result.leak.module, "cause": result.leak.cause}
    return entry

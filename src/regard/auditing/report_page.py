"""The page of a report: verdict, properties, the measured mask beside the declared one, and modules in their order.

In the data -1 stands for a difference that is not finite, and null for one that was not measured.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from regard.atomic_write import write_text_file
from regard.auditing.describe_report import label_property
from regard.auditing.results import AuditReport, InfluenceMatrix, Leak, PropertyResult
from regard.escape_text import escape_text
from regard.language import translate_message, use_language
from regard.view.output_path import REPORT, check_output_path
from regard.view.pack import Json, pack_bits
from regard.view.page_template import Page, fill_template

_AUDIT = Page(
    "audit.html",
    styles=("page", "side_by_side", "audit"),
    scripts=(
        *("language", "decode", "colour", "dom", "views", "audit_state", "theme", "print", "skip", "start", "matrix"),
        *("audit_verdict", "audit_properties", "audit_matrices", "audit_modules", "audit"),
    ),
    body=' class="audit"',
)


def save_report(report: AuditReport, path: Path, *, overwrite: bool = False, language: str | None = None) -> None:
    """Write a report as a page or as JSON, by the ending of the name: see ``AuditReport.save``."""
    check_output_path(path, REPORT, overwrite=overwrite)
    is_json = path.suffix.lower() == ".json"
    text = f"{report.to_json()}\n" if is_json else render_report(report, language=language)
    write_text_file(text, path, what=f"the report {path}")


def render_report(report: AuditReport, *, language: str | None = None) -> str:
    """The page of a report as HTML text."""
    with use_language(language):
        return fill_template(_AUDIT, title=report.model, data=_report_data(report))


def _report_data(report: AuditReport) -> Json:
    noise = report.noise
    return {
        "model": escape_text(report.model),
        "kind": _to_words(report.kind),
        "length": report.length,
        "seed": report.seed,
        "noise": None
        if noise is None
        else {
            "relative": _size(noise.relative),
            "precision": noise.precision,
            "limit": _size(noise.threshold(1.0)),
        },
        "notes": [_to_words(note) for note in report.notes],
        "fingerprint": {escape_text(name): escape_text(value) for name, value in report.fingerprint.items()},
        "results": [_result_data(result) for result in report.results],
        "modules": [
            [escape_text(module.name), escape_text(module.module_class), _size(module.allowed), _size(module.forbidden)]
            for module in report.modules
        ],
        "influence": None if report.influence is None else _influence_data(report.influence),
    }


def _result_data(result: PropertyResult) -> Json:
    return {
        "name": escape_text(label_property(result.name)),
        "promise": _to_words(result.promise),
        "verdict": "unasked" if result.verdict == "cannot be asked" else result.verdict,
        "reason": _to_words(result.reason),
        "difference": _size(result.difference),
        "threshold": _size(result.threshold),
        "comparisons": result.comparisons,
        "leak": None if result.leak is None else _leak_data(result.leak),
    }


def _leak_data(leak: Leak) -> Json:
    return {
        "change": _to_words(leak.change),
        "output": leak.output,
        "input": leak.input,
        "module": escape_text(leak.module),
        "module_class": escape_text(leak.module_class),
        "cause": _to_words(leak.cause),
        "modules": [
            [escape_text(step.name), escape_text(step.module_class), _size(step.inputs), _size(step.outputs)]
            for step in leak.modules
        ],
    }


def _influence_data(influence: InfluenceMatrix) -> Json:
    """Encode the matrices, row by row: numbers with three digits, and the bits of the declared mask."""
    return {
        "measured": [_size(float(f"{change:.3g}")) for row in influence.measured for change in row],
        "threshold": influence.threshold,
        "declared": None if influence.declared is None else pack_bits(np.array(influence.declared, dtype=bool)),
    }


def _to_words(text: str) -> str:
    return escape_text(translate_message(text))


def _size(difference: float | None) -> float | None:
    return -1 if difference is not None and not math.isfinite(difference) else difference

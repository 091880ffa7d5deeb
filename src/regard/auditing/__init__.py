"""Audits: which tokens leak into which outputs of a model, by how much, since which layer, and why."""

from typing import TYPE_CHECKING

from regard.auditing.results import (
    AuditReport,
    InfluenceMatrix,
    Leak,
    ModuleDifference,
    ModuleInfluence,
    NoiseFloor,
    PropertyResult,
)
from regard.import_when_used import import_when_used

if TYPE_CHECKING:
    from regard.auditing.assertion import assert_no_leaks
    from regard.auditing.run_audit import audit, property_names
else:
    __getattr__ = import_when_used(__name__, assertion=("assert_no_leaks",), run_audit=("audit", "property_names"))

__all__ = [
    "AuditReport",
    "InfluenceMatrix",
    "Leak",
    "ModuleDifference",
    "ModuleInfluence",
    "NoiseFloor",
    "PropertyResult",
    "assert_no_leaks",
    "audit",
    "property_names",
]

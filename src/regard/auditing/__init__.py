"""Audits: which tokens leak into which outputs of a model, by how much, since which layer, and why."""

from regard.auditing.assertion import assert_no_leaks
from regard.auditing.results import (
    AuditReport,
    InfluenceMatrix,
    Leak,
    ModuleDifference,
    NoiseFloor,
    PropertyResult,
)
from regard.auditing.run_audit import audit, property_names

__all__ = [
    "AuditReport",
    "InfluenceMatrix",
    "Leak",
    "ModuleDifference",
    "NoiseFloor",
    "PropertyResult",
    "assert_no_leaks",
    "audit",
    "property_names",
]

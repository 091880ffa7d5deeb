"""Check anybody's kernel of attention against exact results: ``regard.conformance.check(function)``.

The float64 oracles of every mechanism, mask and position, cases with their exact results, bounds of rounding errors,
and the names of usual faults. It needs NumPy alone, and a framework only to call functions of it.
"""

from regard.conformance.cases import Case
from regard.conformance.checking import check
from regard.conformance.report import Finding, Outcome, Report
from regard.conformance.suites import cases_of

__all__ = ["Case", "Finding", "Outcome", "Report", "cases_of", "check"]

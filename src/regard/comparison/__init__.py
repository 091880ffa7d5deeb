"""Comparison of mechanisms with exact attention, and replacement of the mechanism of a trained model."""

from regard.comparison.compare import Comparison, ComparisonSummary, compare, sample_rows
from regard.comparison.measures import mass_covered, mass_kept, output_error, top_agreement
from regard.comparison.mechanism_choice import MechanismChoice, parse_choices
from regard.comparison.operations import count_operations
from regard.comparison.replace_mechanism import ReplacedModel, replace_mechanism

__all__ = [
    "Comparison",
    "ComparisonSummary",
    "MechanismChoice",
    "ReplacedModel",
    "compare",
    "count_operations",
    "mass_covered",
    "mass_kept",
    "output_error",
    "parse_choices",
    "replace_mechanism",
    "sample_rows",
    "top_agreement",
]

"""Texts with labels: read from tables, JSON lines and folders."""

from regard.columns import LabelFormat
from regard.text.labelled.labelled_text import LabelledText
from regard.text.labelled.read import FORMATS, read_and_report_labelled, read_labelled
from regard.text.skip_counts import Skipped

__all__ = [
    "FORMATS",
    "LabelFormat",
    "LabelledText",
    "Skipped",
    "read_and_report_labelled",
    "read_labelled",
]

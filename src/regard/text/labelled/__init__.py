"""Texts with labels: read from tables, JSON lines and folders."""

from regard.columns import LabelFormat
from regard.text.labelled.labelled_text import LabelledText
from regard.text.labelled.read import FORMATS, read_and_report_labelled, read_labelled

__all__ = [
    "FORMATS",
    "LabelFormat",
    "LabelledText",
    "read_and_report_labelled",
    "read_labelled",
]

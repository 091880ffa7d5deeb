"""Media: texts, pictures, sounds; and files with labels: a folder per label, or a table of paths and labels."""

from regard.media.labelled_file import LabelledFile, LabelledOrSkipped, MediaFile, SkippedFile
from regard.media.medium import TEXTS, LabelledFormat, Medium
from regard.media.read import check_source, describe_source, read_and_report, read_and_report_labelled, read_labelled

__all__ = [
    "TEXTS",
    "LabelledFile",
    "LabelledFormat",
    "LabelledOrSkipped",
    "MediaFile",
    "Medium",
    "SkippedFile",
    "check_source",
    "describe_source",
    "read_and_report",
    "read_and_report_labelled",
    "read_labelled",
]

"""Media: texts, pairs, pictures, sounds; and files with labels: a folder per label, or a table of paths and labels."""

from regard.media.labelled_file import Labelled, LabelledFile, LabelledOrSkipped, MediaFile
from regard.media.labels import check_labels, label_matrix
from regard.media.medium import PAIRS, TEXTS, LabelledFormat, Medium
from regard.media.read import (
    check_source,
    describe_source,
    read_and_report,
    read_and_report_labelled,
    read_file_of_line,
    read_labelled,
)
from regard.text.skip_counts import Skipped

__all__ = [
    "PAIRS",
    "TEXTS",
    "Labelled",
    "LabelledFile",
    "LabelledFormat",
    "LabelledOrSkipped",
    "MediaFile",
    "Medium",
    "Skipped",
    "check_labels",
    "check_source",
    "describe_source",
    "label_matrix",
    "read_and_report",
    "read_and_report_labelled",
    "read_file_of_line",
    "read_labelled",
]

"""Pictures with labels: read from folders, tables, IDX files and packaged sets."""

from regard.vision.labelled.read import (
    FORMATS,
    are_pictures,
    describe_pictures,
    read_and_report_labelled_pictures,
    read_labelled_pictures,
)

__all__ = [
    "FORMATS",
    "are_pictures",
    "describe_pictures",
    "read_and_report_labelled_pictures",
    "read_labelled_pictures",
]

"""Files of one kind, pictures or sounds, with labels: a folder per label, or a table of paths and labels."""

from regard.media.labelled_file import LabelledFile, LabelledOrSkipped, MediaFile, SkippedFile
from regard.media.media_kind import MediaKind
from regard.media.read import check_source, describe_source, read_and_report, read_source

__all__ = [
    "LabelledFile",
    "LabelledOrSkipped",
    "MediaFile",
    "MediaKind",
    "SkippedFile",
    "check_source",
    "describe_source",
    "read_and_report",
    "read_source",
]

"""Pictures with their captions: see ``media.files_with_texts``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from regard.columns import Columns
from regard.media.files_with_texts import FileWithText, read_and_report_files_with_texts
from regard.media.tables import ValueColumn
from regard.text.table_column import TEXT_NAMES
from regard.vision.picture_file import PICTURES

TEXT = ValueColumn("text", ("text", "caption", "description", "title", "alt", *TEXT_NAMES[1:]))


def read_and_report_captioned_pictures(
    paths: Sequence[Path], columns: Columns | None, say: Callable[[str], None]
) -> list[FileWithText]:
    """Read all pictures with captions in order, and report what was skipped to ``say``.

    ``columns`` are those of path and caption in tables. Raises as ``read_and_report_files_with_texts``.
    """
    return read_and_report_files_with_texts(paths, PICTURES, TEXT, columns, say)

"""Sounds with the texts that are spoken in them: see ``media.files_with_texts``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from regard.audio.sound_file import SOUNDS
from regard.columns import Columns
from regard.media.files_with_texts import FileWithText, read_and_report_files_with_texts
from regard.media.tables import ValueColumn
from regard.text.table_column import TEXT_NAMES

TEXT = ValueColumn("text", ("text", "transcript", "transcription", *TEXT_NAMES[1:]))


def read_and_report_transcribed_sounds(
    paths: Sequence[Path], columns: Columns | None, say: Callable[[str], None]
) -> list[FileWithText]:
    """Read all sounds with texts in order, and report what was skipped to ``say``.

    ``columns`` are those of path and text in tables. Raises as ``read_and_report_files_with_texts``.
    """
    return read_and_report_files_with_texts(paths, SOUNDS, TEXT, columns, say)

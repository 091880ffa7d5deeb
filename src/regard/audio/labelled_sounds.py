"""Labelled sounds: a folder with one folder of WAV or FLAC files per label, or a table of paths and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from regard.audio.sound_file import SOUNDS
from regard.columns import Columns
from regard.media import LabelledFile, LabelledOrSkipped, check_source, describe_source, read_and_report, read_source

FORMATS = (
    "a folder with one folder of WAV or FLAC files per label; or FILE.csv, FILE.tsv or FILE.jsonl with the columns "
    "path and label"
)


def describe_sounds(path: Path) -> str | None:
    """The kind of sounds of a source, in words; None if it does not look like sounds."""
    return describe_source(path, SOUNDS)


def are_sounds(paths: Sequence[Path]) -> bool:
    """Whether sources hold sounds, by the first of them. Missing sources do not."""
    return bool(paths) and describe_sounds(paths[0]) is not None


def read_and_report_labelled_sounds(
    paths: Sequence[Path], columns: Columns | None, say: Callable[[str], None]
) -> list[LabelledFile]:
    """Read all labelled sounds in order, and report what was recognised and skipped to ``say``.

    ``columns`` are those of path and label in tables. Raises OptionError for an unknown format, DataError for a missing
    source, for no sound at all, and as the formats do.
    """
    for path in paths:
        recognised = describe_sounds(path)
        if recognised is not None:
            say(f"recognised: {recognised}")
    return read_and_report(_read_all(paths, columns), paths, SOUNDS, say)


def _read_all(paths: Sequence[Path], columns: Columns | None) -> Iterator[LabelledOrSkipped]:
    for path in paths:
        check_source(path, SOUNDS, formats=FORMATS)
    for path in paths:
        yield from read_source(path, SOUNDS, columns)

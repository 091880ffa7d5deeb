"""Sounds with their texts: a folder with a .txt beside each WAV or FLAC file, or a table of paths and texts.

    speech/1.wav  speech/1.txt  speech/old/2.flac  speech/old/2.txt ..        path,text
                                                                              1.wav,good morning

The white space of a text becomes single spaces, and its characters are composed (Unicode's form NFC): so one text is
written in one way.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from regard.audio.sound_file import SOUNDS
from regard.errors import DataError
from regard.media import SkippedFile, check_source, read_and_report
from regard.media.tables import ValueColumn, read_rows
from regard.text.labelled.columns import TEXT_NAMES, Columns
from regard.text.labelled.folders import read_text_file
from regard.text.tokenizer import is_unicode

FORMATS = (
    "a folder with a NAME.txt beside each NAME.wav or NAME.flac; or FILE.csv, FILE.tsv or FILE.jsonl with the columns "
    "path and text"
)
TEXT = ValueColumn("text", ("text", "transcript", "transcription", *TEXT_NAMES[1:]))


@final
@dataclass(frozen=True)
class TranscribedSound:
    """A sound and its text, which is not empty; ``place`` says where it was read, for messages.

    The file is not opened before it is used.
    """

    content: Path
    text: str
    place: str


TranscribedOrSkipped: TypeAlias = TranscribedSound | SkippedFile


def normalise_text(text: str) -> str:
    """The text with single spaces as white space, none at its ends, and composed characters (NFC)."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


def read_and_report_transcribed_sounds(
    paths: Sequence[Path], columns: Columns | None, say: Callable[[str], None]
) -> list[TranscribedSound]:
    """Read all sounds with texts in order, and report what was skipped to ``say``.

    ``columns`` are those of path and text in tables. Raises OptionError for an unknown format, DataError for a missing
    source, for no sound at all, and as the formats do.
    """
    return read_and_report(_read_all(paths, columns), paths, SOUNDS, say, values="texts")


def _read_all(paths: Sequence[Path], columns: Columns | None) -> Iterator[TranscribedOrSkipped]:
    for path in paths:
        check_source(path, SOUNDS, formats=FORMATS, values="texts")
    for path in paths:
        yield from _read_folder(path) if path.is_dir() else _read_table(path, columns)


def _read_table(path: Path, columns: Columns | None) -> Iterator[TranscribedOrSkipped]:
    for row in read_rows(path, SOUNDS, TEXT, columns=columns):
        if isinstance(row, SkippedFile):
            yield row
        elif not isinstance(row.value, str):
            yield SkippedFile(row.place, "there is no text")
        else:
            yield _make_transcribed(row.file, row.value, row.place)


def _read_folder(folder: Path) -> Iterator[TranscribedOrSkipped]:
    """Read the sounds of a folder, by their names in order; hidden files and folders are ignored.

    Raises DataError for a folder without sounds, and for one in which no sound has a text.
    """
    files = [one for one in sorted(folder.rglob("*")) if one.is_file() and not _is_hidden(one.relative_to(folder))]
    sounds = [one for one in files if SOUNDS.is_name(one)]
    texts = {one.with_suffix(""): one for one in files if one.suffix.lower() == ".txt"}
    if not any(sound.with_suffix("") in texts for sound in sounds):
        raise DataError(
            f"{folder} has no sounds with texts",
            expected="NAME.wav or NAME.flac, and its text in NAME.txt beside it",
            got=f"{SOUNDS.count(len(sounds))}, and none with a text" if sounds else "no sounds",
            do="write the texts beside the sounds, or give a table of paths and texts: FILE.csv",
        )
    for sound in sounds:
        beside = texts.get(sound.with_suffix(""))
        if beside is None:
            yield SkippedFile(str(sound), "there is no text beside a sound")
            continue
        text, problem = read_text_file(beside)
        yield SkippedFile(str(beside), problem) if problem else _make_transcribed(sound, text, str(sound))
    for stem in sorted(texts.keys() - {sound.with_suffix("") for sound in sounds}):
        yield SkippedFile(str(texts[stem]), "there is no sound beside a text")


def _make_transcribed(file: Path, text: str, place: str) -> TranscribedOrSkipped:
    if not is_unicode(text):
        return SkippedFile(place, "there is a lone surrogate, which is half a character")
    text = normalise_text(text)
    return TranscribedSound(file, text, place) if text else SkippedFile(place, "the text is empty")


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)

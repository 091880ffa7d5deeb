"""Files that hold no plain text, recognised by their first bytes or their names, and what to do with each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from regard.errors import DataError, OptionError
from regard.text.gzip_io import inner_suffix

_SIGNATURES = (
    (b"PAR1", "Parquet", "let the name of the file end in .parquet"),
    (b"%PDF-", "PDF", "save its text: pdftotext FILE.pdf FILE.txt"),
    (b"PK\x03\x04", "an archive, as .xlsx, .docx and .zip are", "save a spreadsheet as CSV UTF-8 (.csv), a document as "
     "plain text (.txt), or unpack it"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old file of Office, as .xls and .doc are", "save a spreadsheet as CSV "
     "UTF-8 (.csv), a document as plain text (.txt)"),
    (b"{\\rtf", "RTF", "save it as plain text (.txt)"),
    (b"ARROW1\0\0", "Arrow", "save it as Parquet (.parquet)"),
    (b"SQLite format 3\0", "an SQLite database", "export its table as CSV"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it, or compress it with gzip instead"),
    (b"\xfd7zXZ\0", "compressed by xz", "unpack it, or compress it with gzip instead"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it, or compress it with gzip instead"),
)  # fmt: skip
"""First bytes, the format, and what to do with it."""
SIGNATURE_BYTES = 16
"""Number of first bytes that tell the format."""


def check_signature(start: bytes, name: str, *, expected: str) -> None:
    """Raise DataError if a file that begins with these bytes is of a format that holds no plain text."""
    for signature, format_name, do in _SIGNATURES:
        if start.startswith(signature):
            raise DataError(f"{name} is not plain text", expected=expected, got=format_name, do=do)


SUFFIX_ADVICE: Mapping[tuple[str, ...], str] = {
    (".xls", ".xlsx", ".ods"): "save it as comma-separated values in UTF-8, FILE.csv",
    (".arrow",): "write one object per line, FILE.jsonl",
    (".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"): "unpack it, or compress a file with gzip instead",
}
"""Endings of names of files that no reader reads, and what to do with each."""
TRANSLATION_ADVICE: Mapping[tuple[str, ...], str] = {
    (".tmx", ".po", ".mo", ".pot", ".xlf", ".xliff", ".sdlxliff", ".mqxliff"): "extract its texts with a program for "
    "the format, such as babel for gettext catalogues",
    (".srt", ".vtt", ".ass", ".ssa", ".sub", ".sbv", ".ttml"): "save what is said as text, without numbers and times",
}  # fmt: skip
"""Endings of translations and subtitles, which hold more than texts, and what to do with each where texts are read."""
_NO_LINES = {
    **{suffixes: do for suffixes, do in SUFFIX_ADVICE.items() if ".arrow" not in suffixes},
    **TRANSLATION_ADVICE,
    (".xml",): "extract its texts with a program for the format",
    (".doc", ".docx", ".odt", ".rtf", ".pdf", ".htm", ".html"): "save it as text, one sentence per line",
}


def find_advice(path: Path, advice: Mapping[tuple[str, ...], str]) -> str | None:
    """The advice for a file of an unsupported format, by its name; None for any other file."""
    return next((do for suffixes, do in advice.items() if inner_suffix(path) in suffixes), None)


def check_lines(path: Path) -> None:
    """Raise OptionError if the suffix shows that lines are not sentences: pairs, subtitles, spreadsheets, archives.

    Tables pass, since ``LineReader`` reads a column of them.
    """
    do = find_advice(path, _NO_LINES)
    if do is not None:
        raise OptionError(
            f"the lines of {path} are not plain sentences",
            expected="text with one sentence per line, JSON lines, or a table (.csv, .tsv, .parquet)",
            got=inner_suffix(path),
            do=do,
        )

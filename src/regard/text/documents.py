"""Read documents, for language models: plain text, JSON lines, and folders of such files.

    FILE.txt, or any other file of text      one document, or with ``lines`` one on each line
    FILE.jsonl                               one in each object, in the field ``field``
    FILE.csv, FILE.tsv, FILE.parquet         one in each row, in the column ``field``
    FOLDER                                   the files in it and in its folders, by name; hidden ones are ignored

Each may be gzipped. Texts are UTF-8 and kept as they are, line breaks included.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from regard.errors import DataError, OptionError
from regard.list_files import list_files
from regard.text.file_signatures import (
    SIGNATURE_BYTES,
    SUFFIX_ADVICE,
    TRANSLATION_ADVICE,
    check_signature,
    find_advice,
)
from regard.text.gzip_io import inner_suffix, open_decompressed
from regard.text.line import skip_reason
from regard.text.line_reader import JSON_SUFFIXES, LineReader
from regard.text.path_arguments import PathLike, check_exists, to_paths
from regard.text.skip_counts import Skipped, keep_usable
from regard.text.table_column import TABLE_SUFFIXES

FORMATS = "plain text, FILE.jsonl, FILE.json, FILE.csv, FILE.tsv, FILE.parquet, or a folder of such files"
_HAS_FIELDS = (*JSON_SUFFIXES, *TABLE_SUFFIXES)
_UNSUPPORTED_FORMATS = {
    **SUFFIX_ADVICE,
    **TRANSLATION_ADVICE,
    (".pdf", ".doc", ".docx", ".odt", ".epub", ".html", ".htm"): "save it as plain text",
}
"""Unsupported formats, and what to do with each."""


@final
@dataclass(frozen=True)
class Document:
    """A text, and the ``place`` where it was found."""

    text: str
    place: str


DocumentOrSkipped: TypeAlias = Document | Skipped


def read_documents(
    paths: PathLike | Sequence[PathLike], *, field: str = "text", lines: bool = False
) -> Iterator[DocumentOrSkipped]:
    """Read the documents of all files and folders, in order.

    Raises OptionError for an unsupported format, DataError for a file that is missing or cannot be read.
    """
    paths = to_paths(paths)
    for path in paths:
        _check_format(path)
    for path in paths:
        for file in _files(path):
            if path.is_dir() and find_advice(file, _UNSUPPORTED_FORMATS) is not None:
                yield Skipped(str(file), "a file is not plain text")
            elif inner_suffix(file) in _HAS_FIELDS:
                yield from _read_lines(file, field, in_folder=path.is_dir())
            elif lines:
                yield from _read_lines(file, None, in_folder=path.is_dir())
            else:
                yield _read_file(file, in_folder=path.is_dir())


def read_and_report_documents(paths: Sequence[Path], *, field: str = "text", lines: bool = False) -> list[Document]:
    """Read all usable documents, and report skipped ones as notes. Raises DataError if there is none."""
    error = DataError(
        "the data has no usable text",
        expected=FORMATS,
        got=f"0 documents in {', '.join(map(str, paths))}",
        do="check the files, and the name of the field of JSON lines or of the column of a table (`field=...`)",
    )
    return keep_usable(read_documents(paths, field=field, lines=lines), error)


def _files(path: Path) -> list[Path]:
    return list_files(path) if path.is_dir() else [path]


def _read_lines(file: Path, field: str | None, *, in_folder: bool) -> Iterator[DocumentOrSkipped]:
    """Read the lines of a file. One that cannot be read to its end is skipped in a folder and refused elsewhere."""
    try:
        with closing(LineReader(file, field=field)) as lines:
            for line in lines:
                if line.problem is not None:
                    yield Skipped(line.name, skip_reason(line))
                elif not line.text.strip():
                    yield Skipped(line.name, "the text is blank")
                else:
                    yield Document(line.text, line.name)
    except DataError as error:
        if not in_folder:
            raise
        rest = error.what.removeprefix(str(file))
        begin = "a file" if rest != error.what else "a file cannot be read:"
        yield Skipped(str(file), f"{begin} {rest.replace(f' of {file}', '').strip()}")


def _read_file(file: Path, *, in_folder: bool) -> DocumentOrSkipped:
    """Read a file as one document. An unreadable one is skipped in a folder, and raises DataError elsewhere."""
    try:
        with open_decompressed(file) as stream:
            content = stream.read()
        check_signature(content[:SIGNATURE_BYTES], str(file), expected="plain text in UTF-8")
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        problem = "a file contains zero bytes, and is no text" if "\0" in text else None
        problem = problem or (None if text.strip() else "the text is blank")
    except UnicodeDecodeError as error:
        problem = "a file is not UTF-8"
        if not in_folder:
            raise _not_utf8_error(file, content, error.start) from None
    except (OSError, EOFError, zlib.error, DataError) as error:
        if not in_folder and isinstance(error, DataError):
            raise
        problem = "a file cannot be read to its end"
    if problem is None:
        return Document(text, str(file))
    if in_folder:
        return Skipped(str(file), problem)
    raise DataError(
        f"{file} cannot be used", expected="plain text in UTF-8, whole", got=problem, do="choose another file"
    )


def _not_utf8_error(file: Path, content: bytes, start: int) -> DataError:
    """Build the error for a byte at ``start`` of the content, its mark not counted."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        got, do = "a UTF-16 byte order mark", "convert it: iconv -f UTF-16 -t UTF-8"
    else:
        start += len(codecs.BOM_UTF8) * content.startswith(codecs.BOM_UTF8)
        line = content.count(b"\n", 0, start) + 1
        got = f"byte 0x{content[start]:02x} in line {line:,}, byte {start + 1:,} of its text"
        do = "convert the file, for example with iconv -f LATIN1 -t UTF-8; if it is not text, choose another"
    return DataError(f"{file} is not UTF-8", expected="plain text in UTF-8", got=got, do=do)


def _check_format(path: Path) -> None:
    """Raise DataError for a missing file, OptionError for an unsupported format."""
    check_exists(path, "a file or a folder of texts")
    do = None if path.is_dir() else find_advice(path, _UNSUPPORTED_FORMATS)
    if do is not None:
        raise OptionError(f"documents cannot be read from {inner_suffix(path)}", expected=FORMATS, got=str(path), do=do)

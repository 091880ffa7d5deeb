"""Read texts from arguments, a file or a stream, one line at a time, for inputs of any length.

A line is a text, or a JSON object with the text in a named field; in a table, a row has it in a named column. A record
of a list in a .json file is read as a line of its own. A line with a problem is returned with its error, so the caller
decides whether to stop or to skip the line.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, final

from regard.errors import DataError, OptionError
from regard.text.file_signatures import SIGNATURE_BYTES, check_lines, check_signature
from regard.text.gzip_io import GZIP_MAGIC, inner_suffix, open_raw
from regard.text.line import MAX_LINE_BYTES, Line, skip_reason
from regard.text.lookahead import Lookahead
from regard.text.parquet_rows import read_parquet
from regard.text.pipe_reader import PipeReader
from regard.text.skip_counts import Skipped
from regard.text.table_column import (
    PARQUET_SUFFIX,
    TABLE_SUFFIXES,
    describe_text_column,
    find_text_column,
    is_blank,
    read_column,
)
from regard.text.table_rows import TableRow, split_rows
from regard.text.tokenizer import is_unicode

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
"""Endings of files of JSON objects, one on each line, or in .json also a list of them."""
MAX_JSON_BYTES = 2**28
"""Maximum bytes of a list of records, which is read whole."""
_STANDARD_INPUT = "standard input"


@final
class LineReader:
    """Reads a file (``-`` is standard input) line by line; gzip is recognised by its first bytes.

    ``field`` names the field that holds the text in JSON lines, or its column if the path names a table (.csv,
    .tsv, .parquet), where a row is a text; with None each line is a text, a blank one an empty text. ``name`` is the
    file's name in messages; None takes the path. Raises DataError for a file that cannot be read or is empty.
    """

    def __init__(self, path: Path | str, *, field: str | None = None, name: str | None = None) -> None:
        self.name = name or (_STANDARD_INPUT if str(path) == "-" else str(path))
        self.field = field
        self._path = path
        self._suffix = inner_suffix(Path(path))
        self._file = _open_standard_input() if str(path) == "-" else open_raw(Path(path))
        # A file is complete. For a pipe, ``PipeReader`` tracks how much has arrived.
        self._pipe = None if self._file.seekable() else PipeReader(self._file)
        self._raw = self._file if self._pipe is None else self._pipe.buffered
        self._stream: io.BufferedIOBase = self._raw
        self._bytes_read = 0
        try:
            self._detect_format()
        except BaseException:
            self.close()
            raise

    def _detect_format(self) -> None:
        """Check the first bytes: refuse an empty file and UTF-16, recognise gzip."""
        start = self._raw.peek(SIGNATURE_BYTES)[:SIGNATURE_BYTES]
        if not start:
            do = "give a text in quotes, or a file (`data=...`)" if self.name == _STANDARD_INPUT else "check the path"
            raise DataError(f"{self.name} is empty", expected="one text per line", got="0 bytes", do=do)
        if self._suffix == PARQUET_SUFFIX:
            self._check_parquet(start)
            return
        check_signature(start, self.name, expected="one text per line, or a table")
        if start.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(
                f"{self.name} is not UTF-8",
                expected="text in UTF-8",
                got="a UTF-16 byte order mark",
                do="convert it: iconv -f UTF-16 -t UTF-8",
            )
        if start.startswith(GZIP_MAGIC):
            self._stream = gzip.GzipFile(fileobj=self._raw)

    def _check_parquet(self, start: bytes) -> None:
        """Raise DataError unless the file can be read as Parquet, which begins at its end."""
        if self._pipe is not None or not start.startswith(b"PAR1"):
            raise DataError(
                f"{self.name} cannot be read as Parquet",
                expected="a Parquet file, which is compressed in itself",
                got="a pipe" if self._pipe is not None else f"a file that begins with {start[:4]!r}",
                do="give the file itself, or let its name end in the suffix of its format",
            )

    def choose_field(self) -> str | None:
        """Choose the field or column of the text if ``field`` is None and the file has the suffix of JSON or a table.

        Returns what was guessed, for a report, also whether the first row of a table is a text; None without a guess.
        Raises OptionError for a pipe, which cannot be read twice, and for a file whose lines are not texts
        (``check_lines``), DataError if it is ambiguous.
        """
        check_lines(Path(self._path))
        is_json = self._suffix in JSON_SUFFIXES
        if not (is_json or self._suffix in TABLE_SUFFIXES) or (is_json and self.field is not None):
            return None
        if self._pipe is not None:
            self._check_field_of_pipe()
            return None
        with closing(LineReader(self._path, name=self.name)) as again:
            rows = Lookahead(field_rows(again) if is_json else again.rows(), TableRow.size)
            first = next((row for row in rows if not is_blank(row)), None)
            if first is None:
                return None
            found = find_text_column(first, rows, self.field, self.name)
        if self.field is None:
            name = first.cells[found.place].strip()
            is_unique = [cell.strip().lower() for cell in first.cells].count(name.lower()) == 1
            self.field = name if found.has_header and name and is_unique else str(found.place + 1)
            if is_json:
                return f"{self.name}: the field of the text is {name!r}"
        return describe_text_column(first, found, self.name) if found.is_guess else None

    def _check_field_of_pipe(self) -> None:
        if self.field is None:
            kind = "JSON" if self._suffix in JSON_SUFFIXES else "a table"
            raise OptionError(
                f"{self.name} is a pipe with {kind}, and the field or column of the text is not named",
                expected='`field="..."`',
                got="no field",
                do="name the field or column that holds the text, or give a file",
            )

    def close(self) -> None:
        """Close the file; leave standard input open."""
        if self._stream is not self._raw:
            self._stream.close()
        if self.name != _STANDARD_INPUT:
            self._raw.close()
            self._file.close()

    @property
    def position(self) -> int:
        """Bytes of the file read so far, compressed bytes for gzip; 0 for a stream."""
        return self._raw.tell() if self._raw.seekable() else 0

    @property
    def size(self) -> int | None:
        """Size of the file in bytes; None for a stream."""
        try:
            status = os.fstat(self._raw.fileno())
        except OSError:  # a stream without a file descriptor
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def would_block(self) -> bool:
        """Whether reading the next line would wait for a pipe; always False for files and compressed streams."""
        return self._pipe is not None and self._stream is self._raw and self._pipe.would_block(self._bytes_read)

    def __iter__(self) -> Iterator[Line]:
        if self.field is not None and self._suffix in TABLE_SUFFIXES:
            return read_column(self.rows(), self.field, self.name)
        return self._lines(self.field)

    def rows(self) -> Iterator[TableRow]:
        """Split the file into the rows of a table: Parquet by its suffix, with quotes if it is a .csv, else at tabs."""
        if self._suffix == PARQUET_SUFFIX:
            return read_parquet(Path(self._path), self.name)
        return split_rows(self._lines(None), quoted=self._suffix == ".csv")

    def _lines(self, field: str | None) -> Iterator[Line]:
        """The lines of the file, each with its text, which is in a ``field`` of JSON if there is one."""
        number = 0
        while True:
            raw = self._read_line(number)
            if not raw:
                return
            number += 1
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
                if self._suffix == ".json" and (raw.lstrip().startswith(b"[") or raw.strip() == b"{"):
                    yield from self._records(raw, field)
                    return
            name = f"line {number} of {self.name}"
            if len(raw) > MAX_LINE_BYTES:
                yield Line(number, name, raw, problem=_too_long_error(name))
                # After the yield, so only if the caller goes on: the line may be endless.
                self._skip_rest_of_line(raw, number)
                continue
            try:
                yield Line(number, name, raw, text=_decode_line(_strip_line_ending(raw), name, field))
            except DataError as problem:
                yield Line(number, name, raw, problem=problem)

    def _records(self, begin: bytes, field: str | None) -> Iterator[Line]:
        """The records of a list, each as a line of JSON; a string is a text by itself if there is no ``field``.

        Raises DataError for a file that is no list of records, and for one of more than ``MAX_JSON_BYTES``.
        """
        parts, size = [begin], len(begin)
        while size <= MAX_JSON_BYTES and (part := self._read_bytes(MAX_LINE_BYTES, len(parts))):
            parts.append(part)
            size += len(part)
        if size > MAX_JSON_BYTES:
            raise self._no_list_error(f"more than {MAX_JSON_BYTES:,} bytes")
        try:
            records = json.loads(b"".join(parts).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise self._no_list_error(str(error)) from None
        if not isinstance(records, list):
            raise self._no_list_error("one object")
        for number, record in enumerate(records, start=1):
            name, raw = f"record {number} of {self.name}", json.dumps(record).encode()
            try:
                is_text = isinstance(record, str) and field is None
                text = _check_unicode(record, name) if is_text else _decode_line(raw, name, field)
                yield Line(number, name, raw, text=text)
            except DataError as problem:
                yield Line(number, name, raw, problem=problem)

    def _no_list_error(self, got: str) -> DataError:
        return DataError(
            f"{self.name} is no list of records",
            expected=f"a list of JSON objects, of at most {MAX_JSON_BYTES:,} bytes, or one object per line",
            got=got,
            do="write one object per line, FILE.jsonl: jq -c '.[]' FILE.json",
        )

    def _read_line(self, number: int) -> bytes:
        """Read the next line with its ending; only the start of a line that is too long."""
        return self._read_bytes(MAX_LINE_BYTES + 1, number)

    def _skip_rest_of_line(self, raw: bytes, number: int) -> None:
        """Read to the end of the line that begins with ``raw``, and discard it."""
        while raw and not raw.endswith(b"\n"):
            raw = self._read_bytes(MAX_LINE_BYTES, number)

    def _read_bytes(self, limit: int, number: int) -> bytes:
        """Read to the end of the line, at most ``limit`` bytes. Raises DataError for a damaged or truncated file."""
        try:
            raw = self._stream.readline(limit)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{self.name} cannot be read to its end",
                expected="a complete file",
                got=f"{error}, after line {number}",
                do="copy or download the file again",
            ) from error
        self._bytes_read += len(raw)
        return raw


def lines_from_arguments(texts: Sequence[str]) -> Iterator[Line]:
    """Yield the texts of a command line as lines."""
    for number, text in enumerate(texts, start=1):
        name, raw = f"text {number}", text.encode("utf-8", "surrogateescape") + b"\n"
        yield Line(
            number, name, raw, text, None if is_unicode(text) else _not_utf8_error(name, "bytes of another encoding")
        )


def chunk_lines(lines: LineReader | Sequence[Line], limit: int) -> Iterator[list[Line]]:
    """Group lines into chunks of at most ``limit``, ending a chunk early when the next line has not arrived yet.

    So a program that writes line by line gets its answers at once. A line with a problem ends its chunk, so nothing
    beyond it is read unless the caller goes on. Long lines make short chunks.
    """
    some: list[Line] = []
    size = 0
    for line in lines:
        some.append(line)
        size += len(line.raw)
        waits = isinstance(lines, LineReader) and lines.would_block
        if len(some) == limit or size >= MAX_LINE_BYTES or line.problem is not None or waits:
            yield some
            some, size = [], 0
    if some:
        yield some


def _open_standard_input() -> io.BufferedReader:
    if sys.stdin is None:  # closed by the shell: <&-
        raise DataError(
            "standard input is closed", expected="text", got="no standard input", do="name a file (`data=...`)"
        )
    stream: Any = sys.stdin.buffer
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)


def _strip_line_ending(raw: bytes) -> bytes:
    return raw.removesuffix(b"\n").removesuffix(b"\r")


def _decode_line(raw: bytes, name: str, field: str | None) -> str:
    if b"\0" in raw:
        raise DataError(
            f"{name} contains zero bytes, as UTF-16 text does",
            expected="text in UTF-8",
            got=f"byte 0x00 at byte {raw.index(0) + 1} of the line",
            do="convert it: iconv -f UTF-16LE -t UTF-8 (or UTF-16BE); if it is not text, choose another file",
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8_error(name, f"byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line") from None
    return text if field is None else _extract_field(text, name, field)


def _extract_field(line: str, name: str, field: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = "a blank line" if not line.strip() else str(error)
        raise DataError(
            f"{name} is not JSON",
            expected="one JSON object per line",
            got=reason,
            do="make each line one JSON object, or leave `field=...` out for plain text; a table is read from "
            "a file whose name ends in .csv or .tsv",
        ) from None
    if not isinstance(record, dict) or field not in record:
        got = _join_keys(record) if isinstance(record, dict) else type(record).__name__
        raise DataError(
            f"{name} has no field {field!r}",
            expected=f"an object with {field!r}",
            got=got,
            do="check the name of the field (`field=...`)",
        )
    text = record[field]
    if not isinstance(text, str):
        raise DataError(
            f"{name} has no text in {field!r}",
            expected="a string",
            got=json.dumps(text)[:60],
            do="check the name of the field (`field=...`)",
        )
    return _check_unicode(text, name)


def _check_unicode(text: str, name: str) -> str:
    """Return a text of JSON. Raises DataError for a lone surrogate in it."""
    if not is_unicode(text):
        raise _not_utf8_error(name, "a lone surrogate, which is half a character")
    return text


def read_objects(lines: Iterable[Line]) -> Iterator[tuple[Line, dict[str, Any]] | Skipped]:
    """The objects of JSON lines, each with its line; a ``Skipped`` for a line without one."""
    for line in lines:
        record = _parse_object(line.text)
        if line.problem is not None:
            yield Skipped(line.name, skip_reason(line))
        elif record is None:
            yield Skipped(line.name, "the line is not a JSON object" if line.text.strip() else "the line is blank")
        else:
            yield line, record


def _parse_object(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def field_rows(lines: Iterable[Line]) -> Iterator[TableRow]:
    """The strings of JSON lines as rows of a table: the names of the first object's fields, then the cells of each."""
    names: list[str] | None = None
    for line in lines:
        record = _parse_object(line.text)
        if record is None:
            continue
        if names is None:
            names = [name for name, value in record.items() if isinstance(value, str)]
            yield TableRow(names, line.name, number=line.number, is_names=True)
        values = [record.get(name) for name in names]
        yield TableRow([value if isinstance(value, str) else "" for value in values], line.name, raw=line.raw)


def _join_keys(record: dict[str, object]) -> str:
    return ", ".join(map(repr, list(record)[:8])) or "none"


def _not_utf8_error(name: str, got: str) -> DataError:
    return DataError(
        f"{name} is not UTF-8",
        expected="text in UTF-8",
        got=got,
        do="convert the file: spreadsheets often write Windows-1252, iconv -f CP1252 -t UTF-8; if it is not text, "
        "choose another",
    )


def _too_long_error(name: str) -> DataError:
    return DataError(
        f"{name} is too long to be a text",
        expected=f"at most {MAX_LINE_BYTES:,} bytes per line",
        got="more",
        do="put one text on each line",
    )

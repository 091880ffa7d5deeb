"""Read texts from arguments, a file or a stream, one line at a time, for inputs of any length.

A line is a text, or a JSON object with the text in a named field; in a table, a row has it in a named column. A line
with a problem is returned with its error, so the caller decides whether to stop or to skip the line.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, final

from regard.errors import DataError, OptionError
from regard.text.gzip_io import GZIP_MAGIC, inner_suffix, open_raw
from regard.text.line import MAX_LINE_BYTES, Line
from regard.text.pipe_reader import PipeReader
from regard.text.table_column import TABLE_SUFFIXES, describe_columns, describe_first_row, is_blank, read_column
from regard.text.table_rows import Row, split_csv, split_tsv
from regard.text.tokenizer import is_unicode

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_STANDARD_INPUT = "standard input"


@final
class LineReader:
    """Reads a file (``-`` is standard input) line by line; gzip is recognised by its first bytes.

    ``field`` names the field that holds the text in JSON lines, or its column if the path is that of a table (.csv,
    .tsv), where a row is a text; with None each line is a text, a blank one an empty text. ``name`` is the file's name
    in messages; None takes the path. Raises DataError for a file that cannot be read or is empty.
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
        start = self._raw.peek(2)[:2]
        if not start:
            do = "give a text in quotes, or a file (--data FILE)" if self.name == _STANDARD_INPUT else "check the path"
            raise DataError(f"{self.name} is empty", expected="one text per line", got="0 bytes", do=do)
        if start in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(
                f"{self.name} is not UTF-8",
                expected="text in UTF-8",
                got="a UTF-16 byte order mark",
                do="convert it: iconv -f UTF-16 -t UTF-8",
            )
        if start == GZIP_MAGIC:
            self._stream = gzip.GzipFile(fileobj=self._raw)

    def check_field(self) -> None:
        """Raise OptionError if the file has the suffix of JSON or of a table, and ``field`` is None."""
        if self.field is not None:
            return
        if self._suffix in _JSON_SUFFIXES:
            raise OptionError(
                f"{self.name} holds JSON, and the field of the text is not named",
                expected='field="..." (--field NAME)',
                got=f"no field; the first line has {_describe_fields(self._first_line())}",
                do="name the field that holds the text",
            )
        if self._suffix in TABLE_SUFFIXES:
            header = self._first_row() or Row((), self.name)
            raise OptionError(
                f"{self.name} is a table, and the column of the text is not named",
                expected='field="..." (--field NAME)',
                got=f"no column; the first line has {describe_columns(header)}",
                do="name the column that holds the text, or give its number from 1; "
                "if each line is a text, let the name of the file end in .txt",
            )

    def describe_first_row(self) -> str | None:
        """Say whether the first row of a table is a text, if its column is given by number; None for other input."""
        if self.field is None or self._suffix not in TABLE_SUFFIXES or self._pipe is not None:
            return None
        with closing(LineReader(self._path, name=self.name)) as again:
            first = again._first_row()
        return None if first is None else describe_first_row(first, self.field, self.name)

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

    def rows(self) -> Iterator[Row]:
        """Split the file into the rows of a table: with quotes if it is a .csv, else at tabs."""
        lines = self._lines(None)
        return split_csv(lines) if self._suffix == ".csv" else split_tsv(lines)

    def _first_row(self) -> Row | None:
        return next((row for row in self.rows() if not is_blank(row)), None)

    def _lines(self, field: str | None) -> Iterator[Line]:
        """The lines of the file, each with its text, which is in a ``field`` of JSON if there is one."""
        number = 0
        while True:
            raw = self._read_line(number)
            if not raw:
                return
            number += 1
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
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

    def _read_line(self, number: int) -> bytes:
        """Read the next line with its ending; only the start of a line that is too long."""
        return self._read_bytes(MAX_LINE_BYTES + 1, number)

    def _skip_rest_of_line(self, raw: bytes, number: int) -> None:
        """Read to the end of the line that begins with ``raw``, and discard it."""
        while raw and not raw.endswith(b"\n"):
            raw = self._read_bytes(MAX_LINE_BYTES, number)

    def _read_bytes(self, most: int, number: int) -> bytes:
        """Read to the end of the line, at most ``most`` bytes. Raises DataError for a damaged or truncated file."""
        try:
            raw = self._stream.readline(most)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{self.name} cannot be read to its end",
                expected="a complete file",
                got=f"{error}, after line {number}",
                do="copy or download the file again",
            ) from error
        self._bytes_read += len(raw)
        return raw

    def _first_line(self) -> bytes:
        return self._read_line(0)


def lines_from_arguments(texts: Sequence[str]) -> Iterator[Line]:
    """Yield the texts of a command line as lines."""
    for number, text in enumerate(texts, start=1):
        name, raw = f"text {number}", text.encode("utf-8", "surrogateescape") + b"\n"
        yield Line(
            number, name, raw, text, None if is_unicode(text) else _not_utf8_error(name, "bytes of another encoding")
        )


def chunk_lines(lines: LineReader | Sequence[Line], most: int) -> Iterator[list[Line]]:
    """Group lines into chunks of at most ``most``, ending a chunk early when the next line has not arrived yet.

    So a program that writes line by line gets its answers at once. A line with a problem ends its chunk, so nothing
    beyond it is read unless the caller goes on. Long lines make short chunks.
    """
    some: list[Line] = []
    size = 0
    for line in lines:
        some.append(line)
        size += len(line.raw)
        waits = isinstance(lines, LineReader) and lines.would_block
        if len(some) == most or size >= MAX_LINE_BYTES or line.problem is not None or waits:
            yield some
            some, size = [], 0
    if some:
        yield some


def _open_standard_input() -> io.BufferedReader:
    if sys.stdin is None:  # closed by the shell: <&-
        raise DataError(
            "standard input is closed", expected="text", got="no standard input", do="name a file (--data FILE)"
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
            do="make each line one JSON object, or leave field=... (--field) out for plain text; a table is read from "
            "a file whose name ends in .csv or .tsv",
        ) from None
    if not isinstance(record, dict) or field not in record:
        got = _join_keys(record) if isinstance(record, dict) else type(record).__name__
        raise DataError(
            f"{name} has no field {field!r}",
            expected=f"an object with {field!r}",
            got=got,
            do="check the name of the field (--field)",
        )
    text = record[field]
    if not isinstance(text, str):
        raise DataError(
            f"{name} has no text in {field!r}",
            expected="a string",
            got=json.dumps(text)[:60],
            do="check the name of the field (--field)",
        )
    if not is_unicode(text):
        raise _not_utf8_error(name, "a lone surrogate, which is half a character")
    return text


def _describe_fields(raw: bytes) -> str:
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return "no JSON object"
    return f"the fields {_join_keys(record)}" if isinstance(record, dict) else "no JSON object"


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

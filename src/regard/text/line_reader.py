"""Texts from arguments, a file or a stream, one line at a time, however long the input is.

A line is a text, or a JSON object with the text in a named field. What is wrong with a line is kept with it, so that
the reader of the lines decides whether to stop there or to leave the line out.
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
from dataclasses import dataclass
from pathlib import Path
from typing import final

from regard.errors import DataError, OptionError
from regard.text.gzip_io import GZIP_MAGIC, open_raw
from regard.text.pipe_reader import PipeReader
from regard.text.tokenizer import is_unicode

MAX_LINE_BYTES = 2**24
"""Bytes of a line that are read at most: a longer one is no text but a file of another kind."""

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_STANDARD_INPUT = "standard input"


@final
@dataclass(frozen=True)
class Line:
    """One line: its ``name`` in messages, its ``number`` from 1, its bytes, and its text or what is wrong with it."""

    number: int
    name: str
    raw: bytes
    text: str = ""
    problem: DataError | None = None


@final
class LineReader:
    """A file (``-`` is standard input) to be read line by line; gzip is recognised by its first bytes.

    ``field`` names the text in lines of JSON; None takes each line as a text, a blank one as an empty text. Raises
    DataError for a file that cannot be read or is empty.
    """

    def __init__(self, path: Path | str, *, field: str | None = None) -> None:
        self.name = _STANDARD_INPUT if str(path) == "-" else str(path)
        self.field = field
        self._file = _open_standard_input() if str(path) == "-" else open_raw(Path(path))
        # A file is all there. Of a pipe it has to be known how much has come.
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
        """Look at the first bytes: is there text, and in which form."""
        start = self._raw.peek(2)[:2]
        if not start:
            do = "give a text in quotes, or --data FILE" if self.name == _STANDARD_INPUT else "check the path"
            raise DataError(f"{self.name} is empty", expected="one text a line", got="0 bytes", do=do)
        if start in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(
                f"{self.name} is not UTF-8",
                expected="text in UTF-8",
                got="the mark of UTF-16 at its start",
                do="convert it: iconv -f UTF-16 -t UTF-8",
            )
        if start == GZIP_MAGIC:
            self._stream = gzip.GzipFile(fileobj=self._raw)

    def check_field(self) -> None:
        """Raise OptionError for a file of JSON lines without ``field``, before its lines are taken for texts."""
        if self.field is None and self.name.removesuffix(".gz").endswith(_JSON_SUFFIXES):
            raise OptionError(
                f"{self.name} holds JSON, and it is not said where the text is",
                expected="--field NAME",
                got=f"no --field; the first line has {_describe_fields(self._first_line())}",
                do="name the field that holds the text",
            )

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._stream is not self._raw:
            self._stream.close()
        if self.name != _STANDARD_INPUT:
            self._raw.close()
            self._file.close()

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._raw.tell() if self._raw.seekable() else 0

    @property
    def size(self) -> int | None:
        """Bytes of the whole file; None for a stream."""
        try:
            status = os.fstat(self._raw.fileno())
        except OSError:  # a stream that is no file of the system
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def would_block(self) -> bool:
        """Whether the next line has not come yet; of a file it has, and of a compressed stream it is not known."""
        return self._pipe is not None and self._stream is self._raw and self._pipe.would_block(self._bytes_read)

    def __iter__(self) -> Iterator[Line]:
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
                self._skip_rest_of_line(raw, number)  # only where the reader goes on: the line may have no end
                continue
            try:
                yield Line(number, name, raw, text=_decode_line(_strip_line_ending(raw), name, self.field))
            except DataError as problem:
                yield Line(number, name, raw, problem=problem)

    def _read_line(self, number: int) -> bytes:
        """The next line with its ending; of one that is too long, its start."""
        return self._read_bytes(MAX_LINE_BYTES + 1, number)

    def _skip_rest_of_line(self, raw: bytes, number: int) -> None:
        """Read on to the end of the line that begins with ``raw``, keeping nothing."""
        while raw and not raw.endswith(b"\n"):
            raw = self._read_bytes(MAX_LINE_BYTES, number)

    def _read_bytes(self, most: int, number: int) -> bytes:
        """To the line's end, or ``most`` bytes. Raises DataError for a file that breaks off."""
        try:
            raw = self._stream.readline(most)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{self.name} cannot be read to its end",
                expected="a whole file",
                got=f"{error}, after line {number}",
                do="copy or download the file again",
            ) from error
        self._bytes_read += len(raw)
        return raw

    def _first_line(self) -> bytes:
        return self._read_line(0)


def lines_from_arguments(texts: Sequence[str]) -> Iterator[Line]:
    """The texts of a command line, as lines."""
    for number, text in enumerate(texts, start=1):
        name, raw = f"text {number}", text.encode("utf-8", "surrogateescape") + b"\n"
        yield Line(
            number, name, raw, text, None if is_unicode(text) else _not_utf8_error(name, "bytes of another encoding")
        )


def chunk_lines(lines: LineReader | Sequence[Line], most: int) -> Iterator[list[Line]]:
    """The lines, at most ``most`` at a time, and no more than have come: who writes line by line is answered so.

    A line with a problem is the last of its chunk, so that nothing behind it is read unless the reader goes on. Long
    lines make short chunks.
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
    if sys.stdin is None:  # as Python has it where the shell closed it: <&-
        raise DataError(
            "standard input is closed", expected="text", got="no standard input", do="name a file with --data FILE"
        )
    stream = sys.stdin.buffer
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[arg-type]


def _strip_line_ending(raw: bytes) -> bytes:
    return raw.removesuffix(b"\n").removesuffix(b"\r")


def _decode_line(raw: bytes, name: str, field: str | None) -> str:
    if b"\0" in raw:
        raise DataError(
            f"{name} has bytes of zero, as UTF-16 has",
            expected="text in UTF-8",
            got=f"byte 0x00 at byte {raw.index(0) + 1} of the line",
            do="convert it: iconv -f UTF-16LE -t UTF-8 (or UTF-16BE); if it is no text, choose another file",
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
        raise DataError(f"{name} is not JSON", expected="one JSON object a line", got=reason, do="correct it") from None
    if not isinstance(record, dict) or field not in record:
        got = _join_keys(record) if isinstance(record, dict) else type(record).__name__
        raise DataError(
            f"{name} has no field {field!r}", expected=f"an object with {field!r}", got=got, do="check --field"
        )
    text = record[field]
    if not isinstance(text, str):
        raise DataError(
            f"{name} has no text in {field!r}", expected="a string", got=json.dumps(text)[:60], do="check --field"
        )
    if not is_unicode(text):
        raise _not_utf8_error(name, "a lone surrogate, half of a character")
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
        do="convert the file, for example with iconv; if it is no text, choose another",
    )


def _too_long_error(name: str) -> DataError:
    return DataError(
        f"{name} is too long to be a text",
        expected=f"at most {MAX_LINE_BYTES:,} bytes a line",
        got="more",
        do="give one text a line",
    )

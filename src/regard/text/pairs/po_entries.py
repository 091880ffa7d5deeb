"""The lines of a gettext catalogue, ``.po``, entry by entry, without what babel refuses and without huge entries."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator
from typing import final

from regard.text.line import MAX_LINE_BYTES

QUOTED_STRING = rb'"((?:[^"\\\n]|\\.)*)"'
HEADER = re.compile(rb'^(msgid[ \t]+""\s*\nmsgstr[ \t]+)((?:%s\s*)+)' % QUOTED_STRING, re.MULTILINE)
_IGNORED_COMMENTS = re.compile(rb"^#(?![,~]).*|^#~\|.*", re.MULTILINE)
"""Comments other than flags (they may be in any charset), and previous messages of obsolete entries."""
_BEGIN = re.compile(rb"\s*(#(?!~)|(#~\s*)?msg(ctxt|id)(?!_plural))")
_TRANSLATION = re.compile(rb"\s*(#~\s*)?msgstr")


_ESCAPES = re.compile(r"((?:\\(?:x[0-9A-Fa-f]+|[0-7]{1,3}))+)|\\(.)")
"""Bytes as hexadecimal or octal numbers, which together may be one character, or any other escape."""
_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_STILL_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def expand_escapes(line: str, decode: Callable[[bytes], str]) -> str:
    """Replace the escapes of C that babel leaves as they are, which ``decode`` decodes (GNU gettext manual, PO files).

    A hexadecimal number has any number of digits, of which C uses the last two; an octal one has at most three.
    """

    def replace(found: re.Match[str]) -> str:
        if found[1] is None:
            return _CONTROLS.get(found[2], found[0])
        numbers = found[1].split("\\")[1:]
        data = bytes(int(number[1:], 16) % 256 if number[0] == "x" else int(number, 8) % 256 for number in numbers)
        return decode(data).translate(_STILL_ESCAPED)

    return _ESCAPES.sub(replace, line) if "\\" in line else line


@final
class PoEntries:
    """Reads the lines of a catalogue; ``too_long`` are the first lines, from 1, of the entries that were left out."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream
        self.too_long: list[int] = []

    def lines(self) -> Iterator[bytes]:
        """Yield all lines. Lines of the header's text, of comments and of entries that are too long are blank."""
        entry: list[bytes] = []
        size, first, count, is_complete, has_header = 0, 1, 0, False, False
        for line, begins in self._raw_lines():
            if is_complete and begins and _BEGIN.match(line):
                has_header, blanked = self._blank(entry, size, first, count, has_header=has_header)
                yield from blanked
                entry, size, first, count, is_complete = [], 0, first + count, 0, False
            size += len(line)
            count += line.endswith(b"\n")
            is_complete = is_complete or (begins and _TRANSLATION.match(line) is not None)
            if size > MAX_LINE_BYTES:
                entry.clear()
            else:
                entry.append(line)
        yield from self._blank(entry, size, first, count, has_header=has_header)[1]

    def _raw_lines(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the lines, long ones in parts, and whether each is the beginning of a line."""
        begins = True
        while line := self._stream.readline(MAX_LINE_BYTES):
            yield (line.removeprefix(codecs.BOM_UTF8) if begins else line), begins
            begins = line.endswith(b"\n")

    def _blank(
        self, entry: list[bytes], size: int, first: int, count: int, *, has_header: bool
    ) -> tuple[bool, Iterator[bytes]]:
        """Whether the header was found so far, and the lines of an entry."""
        if size > MAX_LINE_BYTES:
            self.too_long.append(first)
            return has_header, (b"\n" for _ in range(count))
        data, found = b"".join(entry), 0
        if not has_header:
            data, found = HEADER.subn(lambda head: head[1] + b'""' + b"\n" * head[2].count(b"\n"), data, count=1)
        return has_header or found > 0, iter(io.BytesIO(_IGNORED_COMMENTS.sub(b"", data)))

"""The units of a TMX file, one by one: ``<tu> .. </tu>``, so that damage in one leaves the others whole.

The file is decoded and searched for the tags of units, comments and CDATA sections, from its beginning to its end once.
Each unit is parsed alone. Damage is what a parser of XML refuses: a control character, a bare ``&``, an entity that XML
does not define, bytes of another encoding, a tag that is not closed.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import final
from xml.parsers import expat

from regard.text.line import MAX_LINE_BYTES
from regard.text.tokenizer import is_unicode

_CHUNK = 2**16
_CODE_ELEMENTS = frozenset(("bpt", "ept", "it", "ph", "ut", "sub"))
_MARKS = re.compile(r"<!--|-->|<!\[CDATA\[|\]\]>|<(?:[\w.-]+:)?tu(?=[\s>/])|</(?:[\w.-]+:)?(?:tu|tmx)\s*>")
_MAX_MARK = 256
"""Characters of the longest mark, with its prefix."""
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_DECLARED = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})["']""")


@final
class UnitProblem(Enum):
    """Why a unit cannot be used."""

    TOO_LONG = f"it has more than {MAX_LINE_BYTES:,} characters"
    NOT_CLOSED = "it is not closed"
    ENCODING = "it has bytes of another encoding"


@final
@dataclass
class Unit:
    """The text in each language of a unit, of two in one language the first; ``problem`` is the reason to skip it."""

    texts: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


@final
class TmxScanner:
    """Reads a stream: ``prolog`` is what precedes the first unit, and ``units`` are its units, in order.

    ``ended`` says, after the last unit, whether the file ends with ``</tmx>``. Raises LookupError for an unknown
    encoding.
    """

    def __init__(self, file: io.BufferedIOBase) -> None:
        start = file.read(_CHUNK)
        self._encoding, mark = _find_encoding(start)
        self._errors = "surrogateescape" if self._encoding in ("utf-8", "ascii") else "replace"
        self._decoder = codecs.getincrementaldecoder(self._encoding)(errors=self._errors)
        self._start, self._file = start[mark:], file
        self._pieces = self._split()
        self.ended = False
        self.prolog = ""
        self._first: str | UnitProblem | None = None
        for kind, piece in self._pieces:
            if kind == "unit":
                self._first = piece
                break
            self.prolog = str(piece)

    def units(self) -> Iterator[Unit]:
        """Parse the units one by one."""
        if self._first is None:
            return
        yield self._read_unit(self._first)
        for _, piece in self._pieces:
            yield self._read_unit(piece)

    def _read_unit(self, piece: str | UnitProblem) -> Unit:
        if isinstance(piece, UnitProblem):
            return Unit(problem=piece.value)
        if (self._errors == "replace" and "\ufffd" in piece) or not is_unicode(piece):
            return Unit(problem=UnitProblem.ENCODING.value)
        return parse_unit(piece)

    def _split(self) -> Iterator[tuple[str, str | UnitProblem]]:
        """Split into the prolog and the texts of units."""
        held: list[str] = []  # the text of the prolog or the unit so far
        size, in_unit, in_prolog = 0, False, True
        inside, hidden = "", 0  # the end of a comment or a CDATA section, and the units that begin in it
        for text, mark in self._marks():
            size += len(text) + len(mark)
            if in_unit or in_prolog:
                if size <= MAX_LINE_BYTES:
                    held += (text, mark)
                else:
                    held.clear()
            if inside:
                inside = "" if mark == inside else inside
                hidden += mark.startswith("<") and mark.endswith("tu")
            elif mark in ("<!--", "<![CDATA["):
                inside, hidden = "-->" if mark == "<!--" else "]]>", 0
            elif mark.startswith("</"):
                self.ended = "tmx" in mark
                if in_unit and not self.ended:
                    yield "unit", "".join(held) if held else UnitProblem.TOO_LONG
                    held, size, in_unit = [], 0, False
            elif mark.startswith("<"):
                if in_prolog:
                    yield "prolog", "".join(held[:-1])
                if in_unit:
                    yield "unit", UnitProblem.NOT_CLOSED
                held, size, in_unit, in_prolog = [mark], len(mark), True, False
        if in_prolog:
            yield "prolog", "".join(held)
        elif in_unit:
            yield "unit", UnitProblem.NOT_CLOSED
        for _ in range(hidden if inside else 0):  # the comment is not closed
            yield "unit", UnitProblem.NOT_CLOSED

    def _marks(self) -> Iterator[tuple[str, str]]:
        """Yield each mark with the text before it, long texts in parts, and last the rest with an empty mark."""
        rest = ""
        for chunk in self._chunks():
            rest += chunk
            begin = 0
            # The last characters may be the beginning of a mark.
            keep = len(rest) - _MAX_MARK if chunk else len(rest)
            for found in _MARKS.finditer(rest):
                if found.end() > keep:
                    keep = min(keep, found.start())
                    break
                yield rest[begin : found.start()], found[0]
                begin = found.end()
            keep = max(begin, keep)
            yield rest[begin:keep], ""
            rest = rest[keep:]

    def _chunks(self) -> Iterator[str]:
        """The decoded text; last an empty one."""
        block = self._start
        while block:
            yield from filter(None, [self._decoder.decode(block)])
            block = self._file.read(_CHUNK)
        yield from filter(None, [self._decoder.decode(b"", final=True)])
        yield ""


def parse_unit(text: str) -> Unit:
    """Parse ``<tu> .. </tu>``. The text of a segment is without formatting codes, however deeply they are nested."""
    unit, reader = Unit(), expat.ParserCreate("utf-8")
    reader.buffer_text = True
    depth, parent = 0, ""  # the number of open elements, and the one in the unit
    language, codes = "", 0  # the language of the tuv, and the depth of formatting codes
    segment: list[str] | None = None

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth, parent, language, codes, segment
        name = name.rpartition(":")[2]
        depth += 1
        if segment is not None:
            codes += codes > 0 or name in _CODE_ELEMENTS
        elif depth == 2:
            parent = name
            language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg" and depth == 3 and parent == "tuv":
            segment = []

    def end(_: str) -> None:
        nonlocal depth, codes, segment
        depth -= 1
        if segment is None:
            return
        if depth == 2:
            if language:
                unit.texts.setdefault(language, "".join(segment))
            segment = None
        else:
            codes -= codes > 0

    def characters(data: str) -> None:
        if segment is not None and not codes:
            segment.append(data)

    reader.StartElementHandler, reader.EndElementHandler, reader.CharacterDataHandler = start, end, characters
    try:
        reader.Parse(text, True)
    except expat.ExpatError as error:
        return Unit(problem=f"it is not well-formed XML ({expat.ErrorString(error.code)})")
    return unit


def _find_encoding(start: bytes) -> tuple[str, int]:
    """The encoding by the byte order mark, the zero bytes of UTF-16 or the XML declaration, and the mark's length."""
    for mark, name in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return name, len(mark)
    if start.startswith((b"<\0", b"\0<")):
        return "utf-16-le" if start[:1] == b"<" else "utf-16-be", 0
    declared = _DECLARED.match(start)
    if declared is None:
        return "utf-8", 0
    name = declared[1].decode("ascii")
    codec = codecs.lookup(name).name
    if codec.startswith(("utf-16", "utf-32")):
        raise LookupError(f"the encoding {name!r} is not that of the file")
    b"<".decode(codec, "replace")  # a codec of no text is a LookupError
    return codec, 0

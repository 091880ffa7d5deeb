"""Read a gettext catalogue, ``.po`` or ``.mo``: its header, and its entries unfiltered.

The entry with an empty message is the header, lines of ``Name: value`` (GNU gettext manual, section 6.2). An entry that
is longer than the longest line of a text is skipped, so that memory is bounded.

The strings of a compiled gettext catalogue, ``.mo``.

It has two tables of lengths and offsets, for the messages and their translations, in the byte order of its magic number
(GNU gettext manual, section 10.3).
"""

from __future__ import annotations

import codecs
import io
import mmap
import re
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

from regard.errors import DataError, MissingPackageError
from regard.text.gzip_io import inner_suffix, open_decompressed
from regard.text.line import MAX_LINE_BYTES
from regard.text.pairs.po_entries import HEADER, QUOTED_STRING, PoEntries, expand_escapes

CATALOGUE_SUFFIXES = (".po", ".mo")
_LANGUAGE_CODE = re.compile(r"([a-z]{2,3}([-_@][a-z0-9]+)*)(\.[\w-]+)?", re.IGNORECASE)
_MAX_HEADER_BYTES = 2**20
TOO_LONG = f"longer than {MAX_LINE_BYTES:,} bytes"
"""State of an entry that is skipped unread."""


@final
@dataclass(frozen=True)
class CatalogueEntry:
    """A message, with its plural if it has one, and the plural forms of its translation.

    ``state`` is "fuzzy", "obsolete", ``TOO_LONG`` or, for a valid entry, empty.
    """

    messages: tuple[str, ...]
    forms: tuple[str, ...]
    place: str
    state: str = ""


@final
class PluralRule(NamedTuple):
    """The number of plural forms, and the one for n things: an expression in n."""

    forms: int
    expression: str


@final
class CatalogueFile:
    """Gettext catalogue, plain or gzip. Raises DataError for any other file, MissingPackageError without ``babel``."""

    def __init__(self, path: Path) -> None:
        self.path, self._is_mo = path, inner_suffix(path) == ".mo"
        lines = (line.partition(":") for line in self._read_header().decode("latin-1").split("\n"))
        self.header = {name.strip().lower(): value.strip() for name, _, value in lines}

    def _read_header(self) -> bytes:
        if self._is_mo:
            with self._open_mo() as file:
                strings = file.strings()
                return next((found[1][:_MAX_HEADER_BYTES] for found in strings if found and not found[0]), b"")
        with self._open() as stream:
            found = HEADER.search(stream.read(_MAX_HEADER_BYTES).removeprefix(codecs.BOM_UTF8))
        return b"" if found is None else b"".join(re.findall(QUOTED_STRING, found[2])).replace(rb"\n", b"\n")

    @contextmanager
    def _open(self) -> Iterator[io.BufferedIOBase]:
        """Open the file, decompressed. Raises DataError, also where it is read, if it is damaged."""
        try:
            with open_decompressed(self.path) as file:
                yield file
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable_error(str(error), "copy or download it again") from error

    @contextmanager
    def _open_mo(self) -> Iterator[MoFile]:
        with self._open() as stream, closing(MoFile(stream)) as file:
            try:
                yield file
            except struct.error as error:
                raise self._unreadable_error(str(error), "compile it again with msgfmt") from error

    @cached_property
    def language(self) -> str | None:
        """Language of the translations: by the header, else by the name of the file or folder; None if unknown."""
        named = _LANGUAGE_CODE.fullmatch(self.header.get("language", ""))
        return language_from_path(self.path) if named is None else named[1]

    @cached_property
    def plurals(self) -> PluralRule:
        """The plural forms: from the header, else from the language."""
        rule = self.header.get("plural-forms", "")
        forms = re.search(r"\bnplurals\s*=\s*(\d{1,2})\b", rule)
        expression = re.search(r"\bplural\s*=\s*([^;]+)", rule)
        if forms is not None and expression is not None:
            return PluralRule(int(forms[1]), expression[1])
        usual = _import_babel().messages.catalog.Catalog(locale=_parse_locale(self.language or ""))
        return PluralRule(usual.num_plurals, usual.plural_expr)

    def entries(self) -> Iterator[CatalogueEntry]:
        """Yield all entries but the header."""
        return self._parse_mo() if self._is_mo else self._parse_po()

    def _parse_mo(self) -> Iterator[CatalogueEntry]:
        with self._open_mo() as file:
            for number, found in enumerate(file.strings()):
                place = f"message {number} of {self.path}"
                if found is None:
                    yield CatalogueEntry((), (), place, TOO_LONG)
                elif found[0]:
                    messages = self._decode(found[0]).split("\4", 1)[-1].split("\0")  # \4 ends the context, if any
                    yield CatalogueEntry(tuple(messages), tuple(self._decode(found[1]).split("\0")), place)

    def _parse_po(self) -> Iterator[CatalogueEntry]:
        """Parse with babel. It refuses many headers, so the header is blanked, with its number of lines kept."""
        pofile, read = _import_babel().messages.pofile, _MessageCollector()
        do = "rewrite it with msgcat --to-code=UTF-8, which also reports its errors"
        with self._open() as stream:
            entries = PoEntries(stream)
            try:
                pofile.PoFileParser(read, abort_invalid=True).parse(map(self._read_line, entries.lines()))
            except pofile.PoFileError as error:
                # The message of babel counts lines from 0.
                what = str(error).rpartition(" on ")[0]
                raise self._unreadable_error(f"{what}, line {error.lineno + 1}", do) from error
            except DataError:  # of a character that cannot be decoded
                raise
            except (ValueError, LookupError) as error:
                raise self._unreadable_error(str(error), do) from error
        yield from (
            self._to_entry(message, "fuzzy" if message.fuzzy else "") for message in read.messages if message.id
        )
        yield from (self._to_entry(message, "obsolete") for message in read.obsolete.values())
        for line in entries.too_long:
            yield CatalogueEntry((), (), f"line {line} of {self.path}", TOO_LONG)

    def _read_line(self, line: bytes) -> str:
        return expand_escapes(self._decode(line), self._decode)

    def _to_entry(self, message: Any, state: str) -> CatalogueEntry:
        messages, forms = (tuple(side) if message.pluralizable else (side,) for side in (message.id, message.string))
        if message.pluralizable:
            count = max((number for number, form in enumerate(forms, start=1) if form), default=0)
            forms = forms[: max(count, self.plurals.forms)]
        return CatalogueEntry(messages, forms, f"line {message.lineno} of {self.path}", state)

    def _decode(self, data: bytes) -> str:
        """Decode with the charset of the header, by default UTF-8."""
        found = re.search(r"charset=([^\s;]+)", self.header.get("content-type", ""))
        # Templates have the word CHARSET in place of a charset.
        charset = "utf-8" if found is None or found[1] == "CHARSET" else found[1]
        try:
            return data.decode(charset)
        except UnicodeDecodeError as error:
            got = f"byte 0x{error.object[error.start]:02x}, which is invalid in {charset}"
            raise self._unreadable_error(got, "correct the charset in its header") from error
        except (LookupError, ValueError) as error:
            raise self._unreadable_error(
                f"an unknown charset, {charset}", "correct the charset in its header"
            ) from error

    def _unreadable_error(self, got: str, do: str) -> DataError:
        what = f"{self.path} is not a readable gettext catalogue"
        return DataError(what, expected="a gettext .po or .mo file", got=got, do=do)


@final
class _MessageCollector:
    """Collector passed to babel in place of its catalogue, which would merge a fuzzy entry with a valid one."""

    num_plurals = 100
    """Forms of a message, at most: the header, which is not always there, does not limit what is read."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.obsolete: dict[object, Any] = {}

    def __setitem__(self, name: object, message: Any) -> None:
        self.messages.append(message)

    def _key_for(self, *name: object) -> object:
        return object()  # unique, so that no entry replaces another


def language_from_path(path: Path) -> str | None:
    """Language of LANG/LC_MESSAGES/any.po or LANG.po; None if these names are not languages."""
    parent = path.absolute().parent
    names = [parent.parent.name] if parent.name == "LC_MESSAGES" else []
    names = [name.partition(".")[0] for name in (*names, path.name)]
    return next((name for name in names if _parse_locale(name) is not None), None)


def _parse_locale(name: str) -> Any:
    """Parse a babel locale; None for an unknown language or another word."""
    babel = _import_babel()
    try:
        return babel.Locale.parse(name.replace("-", "_")) if _LANGUAGE_CODE.fullmatch(name) else None
    except (ValueError, babel.UnknownLocaleError):
        return None


def _import_babel() -> Any:
    try:
        import babel.messages.catalog
        import babel.messages.pofile
    except ImportError:
        raise MissingPackageError(
            "reading a gettext catalogue needs the package babel",
            expected="babel",
            got="no such package",
            do="pip install 'regard[train]'",
        ) from None
    return babel


_BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}


@final
class MoFile:
    """A catalogue mapped into memory, so that a string is read when it is used. Raises struct.error for other files."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._file: Any = stream
        if not isinstance(stream, io.BufferedReader):  # gzip, whose strings cannot be found before it is decompressed
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            shutil.copyfileobj(stream, self._file)
            self._file.flush()
        try:
            self._data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            self._data = mmap.mmap(-1, 1)

    def close(self) -> None:
        """Close the map, and the file if it is a copy."""
        self._data.close()
        self._file.close()

    def strings(self) -> Iterator[tuple[bytes, bytes] | None]:
        """Yield each message with its translation; None if one of them is too long."""
        order = _BYTE_ORDERS.get(self._data[:4])
        if order is None:
            raise struct.error("no magic number of a .mo")
        count, *tables = struct.unpack_from(f"{order}3I", self._data, 8)
        for number in range(count):
            spans = [struct.unpack_from(f"{order}2I", self._data, table + 8 * number) for table in tables]
            if any(start + length > len(self._data) for length, start in spans):
                raise struct.error(f"message {number + 1} of {count} extends beyond the end of the file")
            if any(length > MAX_LINE_BYTES for length, _ in spans):
                yield None
            else:
                message, translation = (self._data[start : start + length] for length, start in spans)
                yield message, translation

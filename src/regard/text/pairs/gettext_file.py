"""Read a gettext catalogue, ``.po`` or ``.mo``: its header, and its entries unfiltered.

The entry with an empty message is the header, lines of ``Name: value`` (GNU gettext manual, section 6.2). A ``.mo`` has
two tables of lengths and offsets, for the messages and their translations, in the byte order of its magic number
(section 10.3).
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from regard.errors import DataError, MissingPackageError
from regard.text.gzip_io import inner_suffix, open_decompressed

CATALOGUE_SUFFIXES = (".po", ".mo")
_QUOTED_STRING = rb'"((?:[^"\\\n]|\\.)*)"'
_HEADER = re.compile(rb'^(msgid[ \t]+""\s*\nmsgstr[ \t]+)((?:%s\s*)+)' % _QUOTED_STRING, re.MULTILINE)
_IGNORED_COMMENTS = re.compile(rb"^#(?![,~]).*|^#~\|.*", re.MULTILINE)
"""Comments other than flags (they may be in any charset), and previous messages of obsolete entries."""
_LANGUAGE_CODE = re.compile(r"([a-z]{2,3}([-_@][a-z0-9]+)*)(\.[\w-]+)?", re.IGNORECASE)
_BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}


@final
@dataclass(frozen=True)
class CatalogueEntry:
    """A message, with its plural if it has one, and the plural forms of its translation.

    ``state`` is "fuzzy", "obsolete" or, for a valid entry, empty.
    """

    messages: tuple[str, ...]
    forms: tuple[str, ...]
    place: str
    state: str = ""


@final
class CatalogueFile:
    """Gettext catalogue, plain or gzip. Raises DataError for any other file, MissingPackageError without ``babel``."""

    def __init__(self, path: Path) -> None:
        self.path, self._is_mo = path, inner_suffix(path) == ".mo"
        try:
            with open_decompressed(path) as file:
                self._data = file.read().removeprefix(b"\xef\xbb\xbf")  # UTF-8 byte order mark of some editors
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable_error(str(error), "copy or download it again") from error
        lines = (line.partition(":") for line in self._read_header().decode("latin-1").split("\n"))
        self.header = {name.strip().lower(): value.strip() for name, _, value in lines}

    def _read_header(self) -> bytes:
        if self._is_mo:
            return next((translation for message, translation in self._read_mo_strings() if not message), b"")
        found = _HEADER.search(self._data)
        return b"" if found is None else b"".join(re.findall(_QUOTED_STRING, found[2])).replace(rb"\n", b"\n")

    @cached_property
    def language(self) -> str | None:
        """Language of the translations: by the header, else by the name of the file or folder; None if unknown."""
        named = _LANGUAGE_CODE.fullmatch(self.header.get("language", ""))
        return language_from_path(self.path) if named is None else named[1]

    @cached_property
    def plurals(self) -> tuple[int, str]:
        """Number of plural forms, and their rule, an expression in n; from the header, else from the language."""
        rule = self.header.get("plural-forms", "")
        forms = re.search(r"\bnplurals\s*=\s*(\d{1,2})\b", rule)
        expression = re.search(r"\bplural\s*=\s*([^;]+)", rule)
        if forms is not None and expression is not None:
            return int(forms[1]), expression[1]
        usual = _import_babel().messages.catalog.Catalog(locale=_parse_locale(self.language or ""))
        return usual.num_plurals, usual.plural_expr

    def entries(self) -> Iterator[CatalogueEntry]:
        """Yield all entries but the header."""
        return self._parse_mo() if self._is_mo else self._parse_po()

    def _parse_mo(self) -> Iterator[CatalogueEntry]:
        for number, (message, translation) in enumerate(self._read_mo_strings()):
            if message:
                messages = self._decode(message).split("\4", 1)[-1].split("\0")  # \4 ends the context, if any
                forms = self._decode(translation).split("\0")
                yield CatalogueEntry(tuple(messages), tuple(forms), f"message {number} of {self.path}")

    def _read_mo_strings(self) -> Iterator[tuple[bytes, bytes]]:
        order = _BYTE_ORDERS.get(self._data[:4])
        if order is None:
            raise self._unreadable_error("no magic number of a .mo", "compile it again with msgfmt")
        try:
            count, *tables = struct.unpack_from(f"{order}3I", self._data, 8)
            for number in range(count):
                spans = [struct.unpack_from(f"{order}2I", self._data, table + 8 * number) for table in tables]
                message, translation = (self._data[start : start + length] for length, start in spans)
                if (len(message), len(translation)) != (spans[0][0], spans[1][0]):
                    raise struct.error(f"message {number + 1} of {count} extends beyond the end of the file")
                yield message, translation
        except struct.error as error:
            raise self._unreadable_error(str(error), "compile it again with msgfmt") from error

    def _parse_po(self) -> Iterator[CatalogueEntry]:
        """Parse with babel. It refuses many headers, so the header is blanked, with its number of lines kept."""
        data = _HEADER.sub(lambda head: head[1] + b'""' + b"\n" * head[2].count(b"\n"), self._data, count=1)
        lines = io.StringIO(self._decode(_IGNORED_COMMENTS.sub(b"", data)))
        pofile, read = _import_babel().messages.pofile, _MessageCollector(self.plurals[0])
        do = "rewrite it with msgcat --to-code=UTF-8, which also reports its errors"
        try:
            pofile.PoFileParser(read, abort_invalid=True).parse(lines)
        except pofile.PoFileError as error:
            # The message of babel counts lines from 0.
            what = str(error).rpartition(" on ")[0]
            raise self._unreadable_error(f"{what}, line {error.lineno + 1}", do) from error
        except (ValueError, LookupError) as error:
            raise self._unreadable_error(str(error), do) from error
        yield from (
            self._to_entry(message, "fuzzy" if message.fuzzy else "") for message in read.messages if message.id
        )
        yield from (self._to_entry(message, "obsolete") for message in read.obsolete.values())

    def _to_entry(self, message: Any, state: str) -> CatalogueEntry:
        messages, forms = (tuple(one) if message.pluralizable else (one,) for one in (message.id, message.string))
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

    def __init__(self, num_plurals: int) -> None:
        self.num_plurals = num_plurals
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

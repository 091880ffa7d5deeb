"""Sentence pairs from TMX, the exchange format of translation memories: units of one text in several languages.

    <tu><tuv xml:lang="en"><seg>Good morning.</seg></tuv><tuv xml:lang="fr"><seg>Bonjour.</seg></tuv></tu>

TMX 1.4b (GALA, 2005). Inside a segment, ``bpt``, ``ept``, ``it``, ``ph`` and ``ut`` hold formatting codes, and ``sub``
holds a separate text: none of them is part of the sentence. ``hi`` is highlighted text of the sentence.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import final
from xml.etree.ElementTree import ParseError

from regard.errors import DataError, MissingPackageError, OptionError
from regard.text.gzip_io import open_decompressed
from regard.text.pairs.languages import has_same_primary, is_kind_of
from regard.text.pairs.pair import PairOrSkipped, make_pair
from regard.text.pairs.tmx_units import TmxScanner, Unit
from regard.text.skip_counts import Skipped

_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")
"""It names the encoding of the file, and a prolog is parsed as UTF-8."""


def read_tmx(path: Path, *, source: str | None = None, target: str | None = None) -> Iterator[PairOrSkipped]:
    """Read the pairs of a file, plain or gzip, in two of its languages.

    Args:
        path: the file.
        source: a language such as "en", which also matches "en-GB". None is the header's source language; in a unit
            without it, the only variant of it, such as "en" for a header of "en-US".
        target: likewise; None is the only other language in the first unit that is whole.

    A unit that is damaged or too long is skipped, and the others are read (``TmxScanner``). A file that declares
    entities is refused, since they can expand without limit. Raises DataError for a file that is not TMX, OptionError
    if a language has to be given, MissingPackageError without ``defusedxml``.
    """
    with open_decompressed(path) as file:
        reader = _UnitReader(path, source, target)
        try:
            scanner = TmxScanner(file)
            reader.read_prolog(scanner.prolog)
            for unit in scanner.units():
                yield reader.read_unit(unit)
            problem = None if scanner.ended else "it ends without </tmx>"
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            problem = str(error)
        except LookupError as error:
            raise _not_tmx_error(path, str(error)) from error
        if not reader.count:
            raise _not_tmx_error(path, problem or "no <tu> in it")
        if problem is not None:
            yield Skipped(f"after unit {reader.count} of {path}", f"the file is damaged ({problem})")


@final
class _UnitReader:
    """Reads the units of one file in order."""

    def __init__(self, path: Path, source: str | None, target: str | None) -> None:
        self.path, self.source, self.target = path, source, target
        self.count = 0
        self._source_from_header = False  # whether the header decided the source

    def read_prolog(self, prolog: str) -> None:
        """Note the language of the header. Raises DataError if what precedes the first unit is not XML."""
        root = None
        try:
            for name, attributes in _parse_prolog(self.path, prolog):
                root = root or name
                if name == "header" and self.source is None:
                    own = attributes.get("srclang", "")
                    self._source_from_header = own not in ("", "*all*") and not self._is_target(own)
                    self.source = own if self._source_from_header else None
        except ParseError as error:  # it ends before the elements in it do
            if root is None:
                raise _not_tmx_error(self.path, str(error)) from error

    def read_unit(self, unit: Unit) -> PairOrSkipped:
        """Make the pair of a unit from the first text in each of the two languages."""
        self.count += 1
        place = f"unit {self.count} of {self.path}"
        if unit.problem is not None:
            return Skipped(place, f"the unit is damaged: {unit.problem}")
        source, target = self._find_languages(unit.texts)
        sides = [_find_text(unit.texts, language) for language in (source, target)]
        if sides[0] is None or sides[1] is None:
            return Skipped(place, f"there is no text in {source if sides[0] is None else target}")
        return make_pair(sides[0], sides[1], place)

    def _find_languages(self, texts: dict[str, str]) -> tuple[str, str]:
        """Return both languages; the first unit decides those that were not given."""
        if self.source is None and self.target is not None:
            self.source = self._single_language([name for name in texts if not self._is_target(name)], texts)
        if self._source_from_header and self.source is not None:
            self.source = self._match_header_language(self.source, texts)
        if self.source is None:
            raise self._ambiguous_language_error("source", texts)
        if self.target is None:
            self.target = self._single_language(
                [name for name in texts if not is_kind_of(name, str(self.source))], texts
            )
        return self.source, self.target

    def _match_header_language(self, own: str, texts: dict[str, str]) -> str:
        """Name of the header's language in a unit: it may be "en" where the header has "en-US"."""
        if any(is_kind_of(name, own) for name in texts):
            return own
        kinds = [name for name in texts if has_same_primary(name, own) and not self._is_target(name)]
        return kinds[0] if len(kinds) == 1 else own

    def _is_target(self, name: str) -> bool:
        return self.target is not None and is_kind_of(name, self.target)

    def _single_language(self, names: list[str], texts: dict[str, str]) -> str:
        if len(names) != 1:
            raise self._ambiguous_language_error("target" if self.source else "source", texts)
        return names[0]

    def _ambiguous_language_error(self, side: str, texts: dict[str, str]) -> OptionError:
        return OptionError(
            f"the {side} language of {self.path} is ambiguous",
            expected="exactly two languages in its first unit, or named languages",
            got=", ".join(texts) or "none",
            do='name both languages, for example `source="en", target="fr"`',
        )


def _find_text(texts: dict[str, str], language: str) -> str | None:
    exact = [text for name, text in texts.items() if name.lower() == language.lower()]
    return next(iter(exact or [text for name, text in texts.items() if is_kind_of(name, language)]), None)


def _parse_prolog(path: Path, prolog: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The elements that begin in a prolog, without their namespaces, which few files have."""
    try:
        from defusedxml.common import DefusedXmlException
        from defusedxml.ElementTree import iterparse
    except ImportError:
        raise MissingPackageError(
            "reading TMX needs the package defusedxml",
            expected="defusedxml",
            got="no such package",
            do="pip install 'regard[train]'",
        ) from None
    encoded = io.BytesIO(_XML_DECLARATION.sub("", prolog).encode("utf-8", "replace"))
    try:
        for _, element in iterparse(encoded, events=("start",), forbid_entities=True):
            yield str(element.tag).rpartition("}")[2], dict(element.attrib)
    except DefusedXmlException as error:
        raise _not_tmx_error(path, f"{type(error).__name__}: {error}") from error


def _not_tmx_error(path: Path, got: str) -> DataError:
    return DataError(
        f"{path} is not a readable TMX file",
        expected="TMX: XML with <tu> units and without entity declarations",
        got=got,
        do="export it again as TMX 1.4",
    )

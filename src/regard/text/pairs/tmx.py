"""Sentence pairs from TMX, the exchange format of translation memories: units of one text in several languages.

    <tu><tuv xml:lang="en"><seg>Good morning.</seg></tuv><tuv xml:lang="fr"><seg>Bonjour.</seg></tuv></tu>

TMX 1.4b (GALA, 2005). Inside a segment, ``bpt``, ``ept``, ``it``, ``ph`` and ``ut`` hold formatting codes, and ``sub``
holds a separate text: none of them is part of the sentence. ``hi`` is highlighted text of the sentence.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final
from xml.etree.ElementTree import Element, ParseError

from regard.errors import DataError, MissingPackageError, OptionError, RegardError
from regard.text.gzip_io import open_decompressed
from regard.text.pairs.languages import has_same_primary, is_kind_of
from regard.text.pairs.pair import PairOrSkipped, SkippedPair, make_pair

_CODE_ELEMENTS = {"bpt", "ept", "it", "ph", "ut", "sub"}
_LANG_ATTRIBUTE = "{http://www.w3.org/XML/1998/namespace}lang"


def read_tmx(path: Path, *, source: str | None = None, target: str | None = None) -> Iterator[PairOrSkipped]:
    """Read the pairs of a file, plain or gzip, in two of its languages.

    Args:
        path: the file.
        source: a language such as "en", which also matches "en-GB". None is the header's source language; in a unit
            without it, the only variant of it, such as "en" for a header of "en-US".
        target: likewise; None is the only other language in the first unit.

    If the file is truncated or damaged, the units before the damage are kept and the rest is skipped. A file that
    declares entities is refused, since they can expand without limit. Raises DataError for a file that is not TMX,
    OptionError if a language has to be given, MissingPackageError without ``defusedxml``.
    """
    with open_decompressed(path) as file:
        units = _UnitReader(path, source, target)
        try:
            for event, element in _parse_events(path, file):
                if event == "start":
                    units.start_element(element)
                elif _local_name(element) == "tu":
                    yield from units.read_unit(element)
        except RegardError:
            raise
        # expat raises ValueError and LookupError for encodings that it cannot read.
        except (ParseError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, LookupError) as error:
            if not units.count:
                raise _not_tmx_error(path, str(error)) from error
            yield SkippedPair(f"after unit {units.count} of {path}", f"the file is damaged ({error})")
        if not units.count:
            raise _not_tmx_error(path, "no <tu> in it")


@final
class _UnitReader:
    """Reads the units of one file in order."""

    def __init__(self, path: Path, source: str | None, target: str | None) -> None:
        self.path, self.source, self.target = path, source, target
        self.count = 0
        self._source_from_header = False  # whether the header decided the source
        self._body: Element | None = None

    def start_element(self, element: Element) -> None:
        """Note the header's language and the body at the start of their elements."""
        name = _local_name(element)
        if name == "header" and self.source is None:
            own = element.get("srclang", "")
            self._source_from_header = own not in ("", "*all*") and not self._is_target(own)
            self.source = own if self._source_from_header else None
        if name == "body":
            self._body = element

    def read_unit(self, unit: Element) -> Iterator[PairOrSkipped]:
        """Make the pair of a unit from the first text in each of the two languages."""
        self.count += 1
        place = f"unit {self.count} of {self.path}"
        texts: dict[str, str] = {}
        for language, text in _read_texts(unit):
            texts.setdefault(language, text)  # keep the first of two texts in one language
        if self._body is not None:
            self._body.clear()  # free the units read so far
        source, target = self._find_languages(texts)
        sides = [_find_text(texts, language) for language in (source, target)]
        if sides[0] is None or sides[1] is None:
            yield SkippedPair(place, f"there is no text in {source if sides[0] is None else target}")
        else:
            yield make_pair(sides[0], sides[1], place)

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

    def _ambiguous_language_error(self, which: str, texts: dict[str, str]) -> OptionError:
        return OptionError(
            f"the {which} language of {self.path} is ambiguous",
            expected="exactly two languages in its first unit, or named languages",
            got=", ".join(texts) or "none",
            do='name both languages, for example source="en", target="fr" (--source en --target fr)',
        )


def _read_texts(unit: Element) -> Iterator[tuple[str, str]]:
    for variant in unit:
        if _local_name(variant) != "tuv":
            continue
        language = variant.get(_LANG_ATTRIBUTE) or variant.get("lang") or ""
        for segment in variant:
            if _local_name(segment) == "seg" and language:
                yield language, "".join(_iterate_text(segment))


def _iterate_text(element: Element) -> Iterator[str]:
    """Yield the text of a segment, without formatting codes."""
    yield element.text or ""
    for inner in element:
        if _local_name(inner) not in _CODE_ELEMENTS:
            yield from _iterate_text(inner)
        yield inner.tail or ""


def _find_text(texts: dict[str, str], language: str) -> str | None:
    exact = [text for name, text in texts.items() if name.lower() == language.lower()]
    return next(iter(exact or [text for name, text in texts.items() if is_kind_of(name, language)]), None)


def _local_name(element: Element) -> str:
    """Tag of an element without its namespace, which few files have."""
    return str(element.tag).rpartition("}")[2]


def _parse_events(path: Path, file: io.BufferedIOBase) -> Iterator[tuple[str, Any]]:
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
    try:
        yield from iterparse(file, events=("start", "end"), forbid_entities=True)
    except DefusedXmlException as error:
        raise _not_tmx_error(path, f"{type(error).__name__}: {error}") from error


def _not_tmx_error(path: Path, got: str) -> DataError:
    return DataError(
        f"{path} is not a readable TMX file",
        expected="TMX: XML with <tu> units and without entity declarations",
        got=got,
        do="export it again as TMX 1.4",
    )

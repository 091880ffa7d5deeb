"""Gettext catalogues, ``.po`` and ``.mo``: messages of a program and their translations.

Left out are entries that nobody vouches for: fuzzy ones, obsolete ones, and those not translated. A message with a
plural gives a pair for each form: the singular goes with the form for one, the plural with all the others (GNU gettext
manual, section 11.2.6).
"""

from __future__ import annotations

import gettext
import io
import re
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from regard.errors import DataError, MissingPackageError
from regard.text.compressed import inner_suffix, open_bytes
from regard.text.pairs.pair import Found, LeftOut, paired

SUFFIXES = (".po", ".mo")
_ENTRY = re.compile(rb"^msgid ", re.MULTILINE)
_UNUSED = re.compile(
    rb'^"(?:(?:PO-Revision|POT-Creation)-Date:|Plural-Forms: *nplurals=INTEGER).*"(?=\r?$)', re.MULTILINE
)
_BEFORE = re.compile(rb"^#~\|.*$", re.MULTILINE)
"""Lines that nothing here needs, and that babel may refuse: of the head, and what an obsolete message once was."""


def catalogues(folder: Path) -> Iterator[Found]:
    """The pairs of all catalogues in a folder and those below it, in the order of their names.

    Where a ``.mo`` lies beside the ``.po`` that it was made from, only the latter is read. A file that cannot be read
    is left out. Raises DataError where there is none that can.
    """
    files = sorted(path for path in folder.rglob("*") if inner_suffix(path) in SUFFIXES and path.is_file())
    texts = {_domain(path) for path in files if inner_suffix(path) == ".po"}
    files = [path for path in files if inner_suffix(path) == ".po" or _domain(path) not in texts]
    if not files:
        raise DataError(
            f"{folder} holds no catalogue",
            expected="files that end in .po or .mo",
            got=", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "an empty folder",
            do="give the folder of the translations",
        )
    problems = []
    for path in files:
        try:
            yield from catalogue(path)
        except DataError as problem:
            problems.append(problem)
            yield LeftOut(f"{path} ({problem.got})", "a file is no catalogue that can be read")
    if len(problems) == len(files):
        raise problems[0]


def _domain(path: Path) -> Path:
    """Where a catalogue lies, without what tells its form."""
    return path.with_name(path.name.lower().removesuffix(".gz").rpartition(".")[0])


def catalogue(path: Path) -> Iterator[Found]:
    """The pairs of one file; the language of the messages is the source.

    Raises DataError for a file that is none, MissingPackageError without ``babel``.
    """
    read = _read(path)
    singular = _form_for_one(read, path)
    for number, message in enumerate((entry for entry in read if entry.id), start=1):
        place = f"line {message.lineno} of {path}" if message.lineno else f"message {number} of {path}"
        if message.fuzzy:
            yield LeftOut(place, "the entry is fuzzy")
        elif message.pluralizable:
            yield from _plural(message, singular, place)
        else:
            yield _entry(message.id, message.string, place)
    for _ in read.obsolete:
        yield LeftOut(str(path), "the entry is obsolete")


def _plural(message: Any, singular: int, place: str) -> Iterator[Found]:
    one, many = message.id
    forms = message.string if isinstance(message.string, tuple | list) else (message.string,)
    for index, form in enumerate(forms):
        if index == singular or len(forms) == 1:
            yield _entry(one, form, place)
        if index != singular or len(forms) == 1:
            yield _entry(many, form, place)


def _entry(source: str, target: str | None, place: str) -> Found:
    return paired(source, target, place) if target else LeftOut(place, "the entry is not translated")


def _form_for_one(read: Any, path: Path) -> int:
    """Which of the forms is that for one thing."""
    try:
        return int(gettext.c2py(str(read.plural_expr))(1))
    except (ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"{path} has a rule for plurals that cannot be read",
            expected="an expression of n, such as n != 1",
            got=str(read.plural_expr)[:80],
            do="correct the line Plural-Forms at its head",
        ) from error


def _needed(text: bytes) -> bytes:
    """A catalogue without the lines that are not needed; empty ones stand in their places."""
    entries = [entry.start() for entry in islice(_ENTRY.finditer(text), 2)]
    head = entries[1] if len(entries) == 2 else len(text)
    return _UNUSED.sub(b"", text[:head]) + _BEFORE.sub(b"", text[head:])


def _read(path: Path) -> Any:
    try:
        from babel.messages.mofile import read_mo
        from babel.messages.pofile import PoFileError, read_po
    except ImportError:
        raise MissingPackageError(
            "reading a catalogue needs a package",
            expected="babel",
            got="no such package",
            do="pip install 'regard[train]'",
        ) from None
    try:
        with open_bytes(path) as file:
            if inner_suffix(path) == ".mo":
                return read_mo(file)
            return read_po(io.BytesIO(_needed(file.read())), abort_invalid=True)
    # What babel raises for a damaged file depends on where the damage is; struct.error and zlib.error among them.
    except (OSError, EOFError, ValueError, LookupError, PoFileError, struct.error, zlib.error) as error:
        raise DataError(
            f"{path} is no catalogue that can be read",
            expected="gettext's .po or .mo",
            got=str(error) or type(error).__name__,
            do="check it with msgfmt --check",
        ) from error

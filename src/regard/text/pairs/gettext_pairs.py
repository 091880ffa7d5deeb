"""Sentence pairs from gettext catalogues: messages of a program and their translations.

Fuzzy, obsolete and untranslated entries are skipped. A message with a plural gives one pair per form: the singular with
the form for n = 1, the plural with all other forms (GNU gettext manual, section 11.2.6).
"""

from __future__ import annotations

import gettext
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from regard.errors import DataError
from regard.list_files import list_files
from regard.text.gzip_io import inner_suffix
from regard.text.pairs.gettext_file import CATALOGUE_SUFFIXES, CatalogueEntry, CatalogueFile, language_from_path
from regard.text.pairs.languages import is_kind_of
from regard.text.pairs.pair import PairOrSkipped, make_pair
from regard.text.skip_counts import Skipped


@final
@dataclass(frozen=True)
class CatalogueSelection:
    """Selection of the catalogues to read, and their direction.

    ``languages`` maps each file to its language, None if unknown. ``only`` is the language to read; None reads all.
    ``backwards`` is True if that is the source language: then the messages are the targets. Catalogues of unknown
    language are read, too.
    """

    languages: Mapping[Path, str | None]
    only: str | None = None
    backwards: bool = False

    def includes(self, path: Path) -> bool:
        """Whether a file is in the selected language, or its language is unknown."""
        language = self.languages.get(path)
        return self.only is None or language is None or is_kind_of(language, self.only)


def select_catalogues(paths: Sequence[Path], source: str | None, target: str | None) -> CatalogueSelection:
    """Select the catalogues of these files and folders that match the languages.

    Raises DataError if they are in several languages and ``target`` is None.
    """
    languages = {file: _read_language(file) for path in paths for file in _find_catalogues(path)}
    known = sorted({language for language in languages.values() if language is not None})
    if target is None and len(known) > 1 and not any(all(is_kind_of(other, base) for other in known) for base in known):
        raise DataError(
            "the gettext catalogues are in several languages",
            expected="one language, since a translator has one target",
            got=", ".join(known),
            do=f"choose one: `target={known[0]!r}`",
        )
    of_target = {other for other in known if target is not None and is_kind_of(other, target)}
    of_source = {other for other in known if source is not None and is_kind_of(other, source)} - of_target
    # Of catalogues in both languages, those in the language of the messages repeat them. By custom that is English.
    to_english = target is not None and is_kind_of(target, "en") and not is_kind_of(source or "", "en")
    backwards = bool(of_source) and (not of_target or to_english)
    return CatalogueSelection(languages, source if backwards else target, backwards)


def read_catalogues(path: Path, meant: CatalogueSelection) -> Iterator[PairOrSkipped]:
    """Read the pairs of a catalogue, or of all catalogues in a folder and its subfolders, in the order of their names.

    A ``.mo`` beside a ``.po`` of the same name is ignored. Unreadable files and files in other languages are skipped.
    Raises DataError if no file is left.
    """
    files = _find_catalogues(path)
    if not files:
        raise DataError(
            f"{path} holds no gettext catalogue",
            expected="files that end in .po or .mo",
            got=", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "an empty folder",
            do="give the folder that holds the translations",
        )
    selected = [file for file in files if meant.includes(file)]
    if not selected:
        raise DataError(
            f"{path} has no catalogue in the selected language",
            expected=str(meant.only),
            got=", ".join(sorted({str(meant.languages.get(file)) for file in files})),
            do="correct the target language (`target=...`), or remove the path from the data",
        )
    problems = []
    for file in files:
        if file not in selected:
            yield Skipped(f"{file} ({meant.languages.get(file)})", "a file is in another language")
            continue
        try:
            yield from _read_pairs(CatalogueFile(file), meant.backwards)
        except DataError as problem:
            problems.append(problem)
            yield Skipped(f"{file} ({problem.got})", "a file is not a readable gettext catalogue")
    if len(problems) == len(selected):
        raise problems[0]


def _find_catalogues(path: Path) -> list[Path]:
    """List the catalogues in a folder, or the file itself."""
    if not path.is_dir():
        return [path]
    files = [entry for entry in list_files(path) if inner_suffix(entry) in CATALOGUE_SUFFIXES]
    texts = {_strip_suffix(file) for file in files if inner_suffix(file) == ".po"}
    return [file for file in files if inner_suffix(file) == ".po" or _strip_suffix(file) not in texts]


def _strip_suffix(path: Path) -> Path:
    """Path of a catalogue, its name in lower case and without suffixes."""
    return path.with_name(path.name.lower().removesuffix(".gz").rpartition(".")[0])


def _read_language(path: Path) -> str | None:
    try:
        return CatalogueFile(path).language
    except DataError:
        return language_from_path(path)  # its problem is reported when it is read


def _read_pairs(file: CatalogueFile, backwards: bool) -> Iterator[PairOrSkipped]:
    singular = _singular_form(file)
    declared = file.plurals.forms
    for entry in tuple(file.entries()):  # parse to the end first: a damaged file gives no pairs
        if entry.state:
            yield Skipped(entry.place, f"the entry is {entry.state}")
            continue
        if len(entry.messages) > 1 and len(entry.forms) > max(1, declared):
            limit = f"the {declared} of its file's Plural-Forms, or of its language"
            yield Skipped(entry.place, f"the entry has more plural forms than {limit}")
            continue
        for message, form in _pair_forms(entry, singular):
            source, target = (form, message) if backwards else (message, form)
            yield (
                make_pair(source, target, entry.place) if form else Skipped(entry.place, "the entry is not translated")
            )


def _pair_forms(entry: CatalogueEntry, singular: int) -> Iterator[tuple[str, str]]:
    """Pair the singular and plural message of an entry with their forms."""
    message, plural = entry.messages[0], entry.messages[1:2]
    for index, form in enumerate(entry.forms):
        if not plural or index == singular or len(entry.forms) == 1:
            yield message, form
        if plural and (index != singular or len(entry.forms) == 1):
            yield plural[0], form


def _singular_form(file: CatalogueFile) -> int:
    """Index of the plural form for n = 1."""
    rule = file.plurals.expression
    try:
        return int(gettext.c2py(rule)(1))
    except (ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"{file.path} has a plural rule that cannot be parsed",
            expected="an expression in n, such as n != 1",
            got=rule[:80],
            do="correct the line Plural-Forms in its header",
        ) from error

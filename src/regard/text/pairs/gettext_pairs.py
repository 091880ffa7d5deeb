"""Gettext catalogues: messages of a program and their translations.

Left out are entries that nobody vouches for: fuzzy ones, obsolete ones, and those not translated. A message with a
plural gives a pair for each form: the singular goes with the form for one, the plural with all the others (GNU gettext
manual, section 11.2.6).
"""

from __future__ import annotations

import gettext
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from regard.errors import DataError
from regard.text.gzip_io import inner_suffix
from regard.text.pairs.gettext_file import CATALOGUE_SUFFIXES, CatalogueEntry, CatalogueFile, language_from_path
from regard.text.pairs.languages import is_kind_of
from regard.text.pairs.pair import PairOrSkipped, SkippedPair, make_pair


@final
@dataclass(frozen=True)
class CatalogueSelection:
    """Which of some catalogues are read, and which way round.

    ``languages`` are those of all of them, by their files. ``only`` is the language of those that are read; None is
    any. ``backwards`` is True where it is the source: then the messages are the translations. A catalogue of an unknown
    language is taken for one that is meant.
    """

    languages: Mapping[Path, str | None]
    only: str | None = None
    backwards: bool = False

    def includes(self, path: Path) -> bool:
        """Whether a file is read."""
        language = self.languages.get(path)
        return self.only is None or language is None or is_kind_of(language, self.only)


def select_catalogues(paths: Sequence[Path], source: str | None, target: str | None) -> CatalogueSelection:
    """What of the catalogues in these files and folders is meant where these languages are wanted.

    Raises DataError where no target is named and they are of several languages.
    """
    languages = {file: _read_language(file) for path in paths for file in _find_catalogues(path)}
    known = sorted({language for language in languages.values() if language is not None})
    if target is None and len(known) > 1 and not any(all(is_kind_of(one, base) for one in known) for base in known):
        raise DataError(
            "the catalogues are in several languages",
            expected="one language, since a translator has one target",
            got=", ".join(known),
            do=f"name the one that is meant, such as --target {known[0]}",
        )
    of_target = {one for one in known if target is not None and is_kind_of(one, target)}
    of_source = {one for one in known if source is not None and is_kind_of(one, source)} - of_target
    # Of catalogues in both languages those in that of the messages say the same twice; by custom messages are English.
    to_english = target is not None and is_kind_of(target, "en") and not is_kind_of(source or "", "en")
    backwards = bool(of_source) and (not of_target or to_english)
    return CatalogueSelection(languages, source if backwards else target, backwards)


def read_catalogues(path: Path, meant: CatalogueSelection) -> Iterator[PairOrSkipped]:
    """The pairs of a catalogue, or of all in a folder and those below it, in the order of their names.

    Where a ``.mo`` lies beside the ``.po`` that it was made from, only the latter is read. A file that cannot be
    read is left out, and one in another language. Raises DataError where none is left.
    """
    files = _find_catalogues(path)
    if not files:
        raise DataError(
            f"{path} holds no catalogue",
            expected="files that end in .po or .mo",
            got=", ".join(sorted(one.name for one in path.iterdir())[:8]) or "an empty folder",
            do="give the folder of the translations",
        )
    taken = [file for file in files if meant.includes(file)]
    if not taken:
        raise DataError(
            f"{path} is in another language than the one that is meant",
            expected=str(meant.only),
            got=", ".join(sorted({str(meant.languages.get(file)) for file in files})),
            do="correct --target, or leave it out of the data",
        )
    problems = []
    for file in files:
        if file not in taken:
            yield SkippedPair(f"{file} ({meant.languages.get(file)})", "a file is in another language")
            continue
        try:
            yield from _read_pairs(CatalogueFile(file), meant.backwards)
        except DataError as problem:
            problems.append(problem)
            yield SkippedPair(f"{file} ({problem.got})", "a file is no catalogue that can be read")
    if len(problems) == len(taken):
        raise problems[0]


def _find_catalogues(path: Path) -> list[Path]:
    """The catalogues of a folder, or the file itself."""
    if not path.is_dir():
        return [path]
    files = sorted(one for one in path.rglob("*") if inner_suffix(one) in CATALOGUE_SUFFIXES and one.is_file())
    texts = {_strip_suffix(one) for one in files if inner_suffix(one) == ".po"}
    return [one for one in files if inner_suffix(one) == ".po" or _strip_suffix(one) not in texts]


def _strip_suffix(path: Path) -> Path:
    """Where a catalogue lies, without what tells its form."""
    return path.with_name(path.name.lower().removesuffix(".gz").rpartition(".")[0])


def _read_language(path: Path) -> str | None:
    try:
        return CatalogueFile(path).language
    except DataError:
        return language_from_path(path)  # what is wrong with it is said when it is read


def _read_pairs(file: CatalogueFile, backwards: bool) -> Iterator[PairOrSkipped]:
    singular = _singular_form(file)
    for entry in tuple(file.entries()):  # of a damaged file none is taken
        if entry.state:
            yield SkippedPair(entry.place, f"the entry is {entry.state}")
            continue
        for message, form in _pair_forms(entry, singular):
            source, target = (form, message) if backwards else (message, form)
            yield (
                make_pair(source, target, entry.place)
                if form
                else SkippedPair(entry.place, "the entry is not translated")
            )


def _pair_forms(entry: CatalogueEntry, singular: int) -> Iterator[tuple[str, str]]:
    """Each message of an entry with each of its forms."""
    one, many = entry.messages[0], entry.messages[1:2]
    for index, form in enumerate(entry.forms):
        if not many or index == singular or len(entry.forms) == 1:
            yield one, form
        if many and (index != singular or len(entry.forms) == 1):
            yield many[0], form


def _singular_form(file: CatalogueFile) -> int:
    """Which of the forms is that for one thing."""
    rule = file.plurals[1]
    try:
        return int(gettext.c2py(rule)(1))
    except (ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"{file.path} has a rule for plurals that cannot be read",
            expected="an expression of n, such as n != 1",
            got=rule[:80],
            do="correct the line Plural-Forms at its head",
        ) from error

"""Read sentence pairs from files of any supported format, chosen by the file name.

Sentence pairs from two parallel text files: line i of one is the translation of line i of the other.

Sentence pairs from a table, comma-separated or tab-separated: one pair per row, in two of its columns.

Sentence pairs from JSON lines: one object per line, with the two texts in two of its fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

from regard.columns import Columns, PairFormat
from regard.errors import DataError, OptionError
from regard.log import log
from regard.text.column_kinds import judge_columns
from regard.text.file_signatures import SUFFIX_ADVICE, find_advice
from regard.text.gzip_io import inner_suffix
from regard.text.line import Line, skip_reason
from regard.text.line_reader import JSON_SUFFIXES, LineReader, read_objects
from regard.text.lookahead import Lookahead
from regard.text.pairs.gettext_file import CATALOGUE_SUFFIXES
from regard.text.pairs.gettext_pairs import read_catalogues, select_catalogues
from regard.text.pairs.heading import Heading, describe_heading, read_heading
from regard.text.pairs.languages import find_sides
from regard.text.pairs.pair import Pair, PairOrSkipped, make_pair
from regard.text.pairs.subtitles import SUBTITLE_SUFFIXES, read_subtitles
from regard.text.pairs.tmx import read_tmx
from regard.text.path_arguments import PathLike, check_exists, to_paths
from regard.text.skip_counts import Skipped, keep_usable
from regard.text.table_column import TABLE_SUFFIXES
from regard.text.table_rows import TableRow, read_ahead
from regard.text.tokenizer import is_unicode

_TMX_SUFFIXES = (".tmx",)
FORMATS = (
    "FILE.tsv, FILE.csv, FILE.parquet, FILE.jsonl, FILE.json, FILE.tmx, FILE.po, FILE.mo, a folder of .po or .mo, "
    "two text files, or two files of subtitles (.srt, .vtt)"
)
_UNSUPPORTED_FORMATS: dict[tuple[str, ...], str] = {
    **SUFFIX_ADVICE,
    (".xml", ".xlf", ".xliff", ".sdlxliff", ".mqxliff"): "export or convert it to TMX or .po",
    (".pot",): "give the .po files made from it: a template has no translations",
    (".doc", ".docx", ".odt", ".rtf", ".pdf", ".htm", ".html"): "save it as text, one sentence per line",
    (".ass", ".ssa", ".sub", ".sbv", ".ttml"): "convert the subtitles to SubRip, FILE.srt",
}
"""Unsupported formats, and what to do with each."""


def read_pairs(paths: PathLike | Sequence[PathLike], where: PairFormat = PairFormat()) -> Iterator[PairOrSkipped]:
    """Read the pairs of all files in order; two plain text files are read as parallel text, two of subtitles by time.

    Which columns of a table are read is reported as notes, unless they are given. Raises OptionError for an
    unknown format, or for several files whose languages may differ; DataError for a missing file; and the
    errors of the formats.
    """
    paths = to_paths(paths)
    for path in paths:
        _check_format(path)
        check_exists(path, "a file or a folder of pairs")
    if any(inner_suffix(path) in SUBTITLE_SUFFIXES for path in paths):
        yield from read_subtitles(paths)
        return
    plain = [path for path in paths if not path.is_dir() and inner_suffix(path) not in _SUPPORTED_SUFFIXES]
    if len(plain) == 2 and len(paths) == 2:
        yield from read_parallel_text(*paths)
        return
    if plain or not paths:
        raise OptionError(
            "sentence pairs cannot be read from these files",
            expected=FORMATS,
            got=", ".join(map(str, paths)) or "no file",
            do="give the file the suffix of its format, or give two text files, the source first",
        )
    of_catalogues = [path for path in paths if _is_catalogue(path)]
    _check_languages(paths, of_catalogues, where.target)
    meant = select_catalogues(of_catalogues, where.source, where.target)
    for path in paths:
        yield from read_catalogues(path, meant) if _is_catalogue(path) else _read_file(path, where)


def read_and_report(paths: Sequence[Path], where: PairFormat) -> list[PairOrSkipped]:
    """Read all pairs of the files in order, report skipped entries as notes. Raises DataError if there is no pair."""
    found = list(read_pairs(paths, where))
    keep_usable(found, _no_pair_error(paths))
    return found


def read_and_report_pairs(paths: Sequence[Path], where: PairFormat) -> list[Pair]:
    """Read only the usable pairs, and report the rest, as ``read_and_report`` does."""
    return keep_usable(read_pairs(paths, where), _no_pair_error(paths))


def _no_pair_error(paths: Sequence[Path]) -> DataError:
    return DataError(
        "the data has no usable pair",
        expected="sentences and their translations",
        got=f"0 pairs in {', '.join(map(str, paths))}",
        do="check the columns, fields and languages of the data",
    )


def _check_languages(paths: Sequence[Path], of_catalogues: Sequence[Path], target: str | None) -> None:
    """Raise OptionError if several files declare their own languages and ``target`` is None."""
    memories = [path for path in paths if inner_suffix(path) in _TMX_SUFFIXES and not path.is_dir()]
    if target is None and len(memories) + bool(of_catalogues) > 1:
        raise OptionError(
            "each of these files declares its own languages",
            expected="one source and one target language",
            got=", ".join(map(str, [*memories, *of_catalogues])),
            do='name both, for example `source="en", target="fr"`',
        )


def _check_format(path: Path) -> None:
    do = find_advice(path, _UNSUPPORTED_FORMATS)
    if do is not None and not path.is_dir():
        raise OptionError(f"pairs cannot be read from {inner_suffix(path)}", expected=FORMATS, got=str(path), do=do)


def _is_catalogue(path: Path) -> bool:
    return path.is_dir() or inner_suffix(path) in CATALOGUE_SUFFIXES


def _read_file(path: Path, where: PairFormat) -> Iterator[PairOrSkipped]:
    languages = {"source": where.source, "target": where.target}
    suffix = inner_suffix(path)
    if suffix in TABLE_SUFFIXES:
        return read_table(path, columns=where.columns, **languages)
    if suffix in JSON_SUFFIXES:
        return read_json_lines(path, fields=where.fields or _field_names(where.columns), **languages)
    return read_tmx(path, **languages)


def _field_names(columns: Columns | None) -> tuple[str, str] | None:
    """Columns that are given by name, which are also names of fields."""
    first, second = columns or (1, 2)
    return (first, second) if isinstance(first, str) and isinstance(second, str) else None


_SUPPORTED_SUFFIXES = (*TABLE_SUFFIXES, *JSON_SUFFIXES, *_TMX_SUFFIXES, *CATALOGUE_SUFFIXES)


def read_parallel_text(source: Path, target: Path) -> Iterator[PairOrSkipped]:
    """Read the pairs of two files, plain or gzip.

    Raises DataError, at the end of the files, if their numbers of lines differ: a line is missing, and every pair after
    it would be wrong.
    """
    counts = [0, 0]
    with closing(LineReader(source)) as sources, closing(LineReader(target)) as targets:
        for left, right in zip_longest(sources, targets):
            counts[0] += left is not None
            counts[1] += right is not None
            if left is not None and right is not None:
                yield _pair_lines(left, right, f"line {left.number} of {sources.name} and {targets.name}")
    if counts[0] != counts[1]:
        raise DataError(
            f"{source} and {target} differ in their number of lines, so their lines are not translations of each other",
            expected="line i of one to be the translation of line i of the other",
            got=f"{counts[0]:,} lines in {source}, {counts[1]:,} in {target}",
            do="find the line that is missing in the shorter file",
        )


def _pair_lines(left: Line, right: Line, place: str) -> PairOrSkipped:
    for line in (left, right):
        if line.problem is not None:
            return Skipped(line.name, skip_reason(line))
    return make_pair(left.text, right.text, place)


def read_table(
    path: Path, *, columns: Columns | None = None, source: str | None = None, target: str | None = None
) -> Iterator[PairOrSkipped]:
    """Read the pairs of a table, plain or gzip: see ``LineReader.rows``.

    Without ``columns``, names or numbers from 1, they are found by the first rows: in a heading by the languages
    ``source`` and ``target``, by words such as "source" and "target", or by two languages; else they are the only two
    that hold texts. Which they are is reported as notes. Raises DataError if they are ambiguous (``read_heading``).
    """
    heading: Heading | None = None
    with closing(LineReader(path)) as lines:
        rows = Lookahead(lines.rows(), TableRow.size)
        for row in rows:
            cells = row.cells
            if row.problem is not None or not any(cell.strip() for cell in cells):
                yield Skipped(row.place, row.problem or "the line is blank")
                continue
            if heading is None:
                heading = read_heading(read_ahead(row, rows), row.place, columns, source, target)
                if columns is None:
                    log.info(describe_heading(heading, cells, str(path)))
                if heading.is_guess:
                    yield Skipped(row.place, "the row is taken for the names of the columns")
                if heading.is_heading:
                    continue
            first, second = heading.columns
            if len(cells) < max(first, second):
                yield Skipped(row.place, f"there are fewer than {max(first, second)} columns")
                continue
            yield make_pair(cells[first - 1], cells[second - 1], row.place)


_NESTED_FIELD = "translation"


def read_json_lines(
    path: Path, *, fields: tuple[str, str] | None = None, source: str | None = None, target: str | None = None
) -> Iterator[PairOrSkipped]:
    """Read the pairs of a file, plain or gzip.

    Without ``fields`` they are detected in the first object: the fields named by the languages ``source`` and
    ``target``, or "source" and "target" or "src" and "tgt", or the only two that hold texts in the first lines, in
    their order, which is reported as notes. If a field "translation" holds an object, its fields are used. Raises
    DataError if it is ambiguous.
    """
    with closing(LineReader(path)) as reader:
        objects = Lookahead(read_objects(reader), lambda entry: 0 if isinstance(entry, Skipped) else len(entry[0].raw))
        for entry in objects:
            if isinstance(entry, Skipped):
                yield entry
                continue
            line, record = entry[0], _unnest(entry[1])
            if fields is None:
                others = [_unnest(other[1]) for other in objects.peek() if not isinstance(other, Skipped)]
                fields, is_guess = _find_fields([record, *others], line.name, source, target)
                if is_guess:
                    log.info(f"{path}: source from the field {fields[0]!r}, target from {fields[1]!r}")
            left, right = (record.get(name) for name in fields)
            if not isinstance(left, str) or not isinstance(right, str):
                yield Skipped(line.name, f"there is no text in {fields[0]!r} or in {fields[1]!r}")
            elif not is_unicode(left + right):
                yield Skipped(line.name, "there is a lone surrogate, which is half a character")
            else:
                yield make_pair(left, right, line.name)


def _unnest(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object in the field "translation", if there is one."""
    inner = record.get(_NESTED_FIELD)
    return inner if isinstance(inner, dict) else record


def _find_fields(
    records: Sequence[Mapping[str, Any]], name: str, source: str | None, target: str | None
) -> tuple[tuple[str, str], bool]:
    """The fields of source and target, and whether they are a guess by what they hold."""
    fields = [field for field, value in records[0].items() if isinstance(value, str)]
    for names in (fields, list(records[0])):
        found = find_sides(names, source, target)
        if found is not None:
            return (names[found[0]], names[found[1]]), False
    columns = judge_columns([[str(record.get(field) or "") for field in fields] for record in records])
    texts = [field for field, column in zip(fields, columns, strict=True) if column.is_text]
    if len(texts) == 2:
        return (texts[0], texts[1]), True
    kinds = [f"{field!r} ({column.kind.value})" for field, column in zip(fields, columns, strict=True)]
    raise DataError(
        f"it is ambiguous which fields of {name} hold the sentence and its translation",
        expected='the fields "source" and "target", fields named by the two languages, or exactly two of texts',
        got="the fields " + (", ".join(kinds[:8]) or "none"),
        do='name the two fields, the source first: `fields=("...", "...")`',
    )

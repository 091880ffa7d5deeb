"""Pairs of sentences from files as people have them, by what the files are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from regard.errors import OptionError
from regard.text.compressed import inner_suffix
from regard.text.pairs.aligned import aligned
from regard.text.pairs.catalogue import SUFFIXES, catalogue, catalogues
from regard.text.pairs.json_lines import json_lines
from regard.text.pairs.pair import Found
from regard.text.pairs.table import table
from regard.text.pairs.translation_memory import translation_memory

_TABLES, _JSON, _MEMORIES = (".tsv", ".tab"), (".jsonl", ".ndjson"), (".tmx",)
FORMATS = "FILE.tsv, FILE.jsonl, FILE.tmx, FILE.po, FILE.mo, a folder of .po or .mo, or two text files"


@final
@dataclass(frozen=True)
class Where:
    """Where the two texts stand, for the formats that leave it open.

    ``source`` and ``target`` are languages, such as "en"; ``columns`` those of a table, from 1; ``fields`` those of
    JSON.
    """

    source: str | None = None
    target: str | None = None
    columns: tuple[int, int] = (1, 2)
    fields: tuple[str, str] | None = None


def read_pairs(paths: Sequence[Path], where: Where = Where()) -> Iterator[Found]:
    """The pairs of all files, one after the other; of two plain text files, those of their lines.

    Raises OptionError for a file of no known format, and what the formats raise.
    """
    plain = [path for path in paths if not path.is_dir() and inner_suffix(path) not in _KNOWN]
    if len(plain) == 2 and len(paths) == 2:
        yield from aligned(*paths)
        return
    if plain or not paths:
        raise OptionError(
            "it is not clear how to read pairs of sentences from these files",
            expected=FORMATS,
            got=", ".join(map(str, paths)) or "no file",
            do="rename the file by its format, or give both text files, the source first",
        )
    for path in paths:
        yield from _of_file(path, where)


def _of_file(path: Path, where: Where) -> Iterator[Found]:
    suffix = inner_suffix(path)
    if path.is_dir():
        return catalogues(path)
    if suffix in _TABLES:
        return table(path, columns=where.columns, titles=frozenset(filter(None, (where.source, where.target))))
    if suffix in _JSON:
        return json_lines(path, fields=where.fields)
    if suffix in _MEMORIES:
        return translation_memory(path, source=where.source, target=where.target)
    return catalogue(path)


_KNOWN = (*_TABLES, *_JSON, *_MEMORIES, *SUFFIXES)

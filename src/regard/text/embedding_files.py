"""Several input files, each embedded into an output of its own: the files of a folder, or of a pattern.

corpus/part-0001.jsonl.gz  ->  vectors/part-0001.npy
corpus/de/part-0002.jsonl  ->  vectors/de/part-0002.npy
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from regard.errors import DataError, OptionError
from regard.list_files import is_hidden, list_files
from regard.text.line_reader import JSON_SUFFIXES

_TEXT_SUFFIXES = (".txt", ".text", *JSON_SUFFIXES)


@final
@dataclass(frozen=True)
class FileToEmbed:
    """An input file, and the output for its vectors."""

    source: Path
    out: Path


def names_several_files(data: str | None) -> bool:
    """Whether the data are a folder, or a pattern such as ``corpus/*.txt``, and not a single file.

    A bracket alone makes no pattern: names of files have them.
    """
    if data is None or data == "-":
        return False
    return Path(data).is_dir() or (("*" in data or "?" in data) and not Path(data).exists())


def find_files(data: str) -> list[Path]:
    """List the files of a folder and of its folders, or those that match a pattern, sorted; hidden ones are left out.

    Raises DataError if there is none.
    """
    folder = Path(data)
    if folder.is_dir():
        files = list_files(folder)
    else:
        found = map(Path, glob.iglob(data, recursive=True))  # noqa: PTH207 - absolute or not
        files = sorted(path for path in found if path.is_file() and not is_hidden(path.name))
    if not files:
        raise DataError(
            f"there are no files in {data}" if folder.is_dir() else f"no file matches {data}",
            expected="at least one file of texts",
            got="none; hidden files do not count",
            do="check the path",
        )
    return files


def plan_outputs(sources: Sequence[Path], folder: Path, form: str, *, root: Path | None = None) -> list[FileToEmbed]:
    """Choose an output in ``folder`` for each source: in the folder that the source has in ``root``, if there is one.

    Raises OptionError if two sources would have the same output.
    """

    def choose(source: Path) -> Path:
        inner = folder if root is None else folder / source.relative_to(root).parent
        return inner / f"{_stem(source)}.{form}"

    files = [FileToEmbed(source, choose(source)) for source in sources]
    count = Counter(file.out for file in files)
    twice = [str(file.source) for file in files if count[file.out] > 1]
    if twice:
        raise OptionError(
            "several input files would have the same output",
            expected="files whose names differ before .gz and the suffix of text",
            got=", ".join(twice[:4]),
            do="rename one, or embed them into different folders",
        )
    return files


def _stem(path: Path) -> str:
    """Name of the file without .gz and without a suffix of text: "part-1" for ``part-1.jsonl.gz``."""
    name = path.name.removesuffix(".gz")
    stem, suffix = Path(name).stem, Path(name).suffix
    return stem if suffix.lower() in _TEXT_SUFFIXES else name

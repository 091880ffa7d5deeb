"""Texts of a folder: each file in it and in its folders is a text, in the order of their paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final, overload

from regard.errors import DataError
from regard.text.line import Line
from regard.text.skip_counts import SkipCounts
from regard.text.text_file import list_texts, read_text_file
from regard.text.tokenizer import is_unicode


@final
class TextFolder(Sequence[Line]):
    """The texts of a folder, each read when it is taken; hidden files, and those not named .txt, are left out.

    ``skipped`` says in words what was left out. Raises DataError for a folder without texts.
    """

    def __init__(self, folder: Path) -> None:
        skips, files = SkipCounts(), list[Path]()
        for entry, problem in list_texts(folder):
            if problem is None:
                files.append(entry)
            else:
                skips.add(str(entry), problem)
        if not files:
            raise DataError(
                f"{folder} has no texts",
                expected="files of texts, such as NAME.txt",
                got=f"{sum(count for count, _ in skips.skipped.values()):,} other files",
                do="check the path; of a table or of JSON lines give the file itself",
            )
        self.skipped, self._files = skips.sentences(), files

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> list[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | list[Line]:
        if isinstance(index, slice):
            return [self[one] for one in range(len(self))[index]]
        return _read(self._files[index], range(1, len(self) + 1)[index])


def _read(file: Path, number: int) -> Line:
    text, problem = read_text_file(file)
    if problem is None and not is_unicode(text):
        problem = "there is a lone surrogate, which is half a character"
    raw = text.encode("utf-8", "surrogatepass")
    if problem is None:
        return Line(number, str(file), raw, text)
    error = DataError(f"{file} cannot be used", expected="plain text in UTF-8", got=problem, do="leave it out")
    return Line(number, str(file), raw, problem=error)

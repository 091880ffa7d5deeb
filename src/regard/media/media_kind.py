"""The differences between pictures and sounds before a file is opened: words, endings of names, columns of tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from regard.arguments import explain_arguments


@final
@explain_arguments
@dataclass(frozen=True)
class MediaKind:
    """A kind of files.

    Args:
        one, several: what messages call them, such as "picture" and "pictures".
        suffixes: endings of their names, in lower case.
        columns: names by which the column of the path is found in a table, the usual one first.
        example: the name of a file, such as "NAME.jpg".
    """

    one: str
    several: str
    suffixes: tuple[str, ...]
    columns: tuple[str, ...]
    example: str

    def is_name(self, path: Path) -> bool:
        """Whether the name of a file ends like those of this kind."""
        return path.suffix.lower() in self.suffixes

    def count(self, number: int) -> str:
        """A number of files in words, such as "1 picture" or "1,200 pictures"."""
        return f"{number:,} {self.one if number == 1 else self.several}"

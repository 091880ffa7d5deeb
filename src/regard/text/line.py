"""A line of text input: its text, or the problem that makes it unusable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.errors import DataError

LINE_SEPARATORS = r"\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029"
"""Character class for a regular expression, without its brackets."""
MAX_LINE_BYTES = 2**24
"""Maximum bytes per line: a longer one is taken for a file of another kind."""


@final
@dataclass(frozen=True)
class Line:
    """One line, or one row of a table: its text or its problem.

    ``number`` is the number of the line in the file, from 1, or of the first line of the row; ``name`` is for messages,
    and ``raw`` are its bytes.
    """

    number: int
    name: str
    raw: bytes
    text: str = ""
    problem: DataError | None = None

    def require_text(self) -> str:
        """The text. Raises the line's problem if it has one."""
        if self.problem is not None:
            raise self.problem
        return self.text


def skip_reason(line: Line) -> str:
    """Reason for skipping a line with a problem, without the name of the line."""
    assert line.problem is not None
    return "the line " + line.problem.what.removeprefix(line.name).strip()

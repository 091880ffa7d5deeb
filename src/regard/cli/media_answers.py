"""The answers of a verb to pictures or sounds: a line for each, in order, as soon as their chunk is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.output_file import open_output_file
from regard.cli.stderr import say

if TYPE_CHECKING:
    from regard.cli.media_input import MediaInput
    from regard.errors import DataError
    from regard.media import MediaKind


def write_answers(
    chunks: Iterable[list[MediaInput]],
    answer: Callable[[list[MediaInput]], list[str]],
    out: Path | None,
    kind: MediaKind,
    *,
    lacking: str,
    skip_bad: bool,
) -> None:
    """Write the lines that ``answer`` returns for the files of each chunk, and report how many files were broken.

    ``lacking`` is what a broken file is without, such as "a label". Raises DataError for the first broken file, behind
    the lines of those before it, unless ``skip_bad``.
    """
    broken = 0
    with open_output_file(out) as file:
        for some in chunks:
            good, problem = _select_usable(some, lacking=lacking, skip_bad=skip_bad)
            for line in answer(good):
                file.write(line)
            file.flush()  # a program at the other end of the pipe may wait for these
            if problem is not None:
                raise problem
            broken += sum(one.problem is not None for one in some)
    if broken:
        say(f"{kind.count(broken)} without {lacking}")
    if out is not None:
        say(f"{out}: written")


def _select_usable(
    some: list[MediaInput], *, lacking: str, skip_bad: bool
) -> tuple[list[MediaInput], DataError | None]:
    """The files up to the first broken one, and its error; with ``skip_bad`` all, broken ones reported.

    ``lacking`` is what a broken file is without, such as "a label".
    """
    for number, one in enumerate(some):
        if one.problem is not None:
            if not skip_bad:
                return some[:number], one.problem
            say(f"without {lacking}: {one.problem.what}")
    return some, None

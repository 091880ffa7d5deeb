"""Bars on standard error, if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.text.line_reader import Line, LineReader


@contextmanager
def line_progress(lines: LineReader | list[Line]) -> Iterator[Callable[[int], None]]:
    """A bar for lines that are read: by bytes of a file, by lines where the size is not known.

    What it gives is called with the number of lines that are done.
    """
    source = None if isinstance(lines, list) else lines
    with _progress_bar("lines", len(lines) if isinstance(lines, list) else lines.size) as update:

        def advance(done: int) -> None:
            update(done if source is None or source.size is None else source.position, done)

        yield advance


@contextmanager
def count_progress(total: int, things: str) -> Iterator[Callable[[int], None]]:
    """A bar for so many things. What it gives is called with the number that is done."""
    with _progress_bar(things, total) as update:
        yield lambda done: update(done, done)


@contextmanager
def indeterminate_progress(what: str) -> Iterator[None]:
    """A progress bar without a count, for work whose parts cannot be counted."""
    with _progress_bar("", None, what=what):
        yield


@contextmanager
def _progress_bar(things: str, total: int | None, *, what: str = "") -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    text = TextColumn(what, markup=False) if what else TextColumn("{task.fields[done]:,} " + things)
    columns = (BarColumn(), text, TimeElapsedColumn(), *([] if what else [TimeRemainingColumn()]))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total, done=0)
        yield lambda completed, done: bar.update(task, completed=completed, done=done)

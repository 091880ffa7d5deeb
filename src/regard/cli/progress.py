"""Progress bars on standard error, shown only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from regard.language import translate_message

if TYPE_CHECKING:
    from regard.text.line import Line
    from regard.text.line_reader import LineReader

Item = TypeVar("Item")


@contextmanager
def line_progress(lines: LineReader | Sequence[Line], out: Path | None) -> Iterator[Callable[[int], None]]:
    """Show progress over lines of input: by bytes if the file size is known, else by lines.

    ``out`` is where answers are written meanwhile; None is standard output. On a terminal they show the progress
    themselves, and would be mixed with a bar. Call the yielded function with the number of lines done.
    """
    source, hides = None if isinstance(lines, Sequence) else lines, out is None and sys.stdout.isatty()
    with _progress_bar("lines", len(lines) if isinstance(lines, Sequence) else lines.size, hides=hides) as update:

        def advance(done: int) -> None:
            update(done if source is None or source.size is None else source.position, done)

        yield advance


@contextmanager
def count_progress(total: int, plural: str) -> Iterator[Callable[[int], None]]:
    """Show progress over ``total`` things. Call the yielded function with the number done."""
    with _progress_bar(plural, total) as update:
        yield lambda done: update(done, done)


@contextmanager
def track(items: Collection[Item], plural: str) -> Iterator[Iterator[Item]]:
    """Yield the items one by one, and show progress over them: an item is done when the next is asked for."""
    with count_progress(len(items), plural) as advance:

        def each() -> Iterator[Item]:
            for done, item in enumerate(items, start=1):
                yield item
                advance(done)

        yield each()


@contextmanager
def byte_progress(total: int) -> Iterator[Callable[[int, int], None]]:
    """Show progress over ``total`` bytes of lines. Call the yielded function with the new bytes and lines."""
    with _progress_bar("lines", total) as update:
        done = [0, 0]

        def advance(more_bytes: int, more_lines: int) -> None:
            done[0] += more_bytes
            done[1] += more_lines
            update(*done)

        yield advance


@contextmanager
def indeterminate_progress(what: str) -> Iterator[None]:
    """Show that work goes on, without a count."""
    with _progress_bar("", None, what=what):
        yield


@contextmanager
def _progress_bar(
    plural: str, total: int | None, *, what: str = "", hides: bool = False
) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    counted = TextColumn(translate_message(f"1,000 {plural}").replace("1,000", "{task.fields[done]:,}"))
    text = TextColumn(translate_message(what), markup=False) if what else counted
    columns = (BarColumn(), text, TimeElapsedColumn(), *([] if what else [TimeRemainingColumn()]))
    with Progress(*columns, console=console, transient=True, disable=hides or not console.is_terminal) as bar:
        task = bar.add_task("", total=total, done=0)
        yield lambda completed, done: bar.update(task, completed=completed, done=done)

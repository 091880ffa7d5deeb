"""Notes for the user: what was read, chosen, skipped or left out. They go to the logger "regard" of ``logging``.

    logging.basicConfig(level=logging.INFO)     shows them in Python

The command line prints them, and a training passes them to its report (``notes_to``). A note may have marked arguments
(``regard.marked_arguments``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

log = logging.getLogger("regard")


@contextmanager
def notes_to(show: Callable[[str], None]) -> Iterator[None]:
    """Pass the notes inside the block to ``show``, and to no handler of the caller's."""
    handlers, level, propagate = log.handlers, log.level, log.propagate
    log.handlers, log.propagate = [_Shown(show)], False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


@final
class _Shown(logging.Handler):
    """Passes the text of each record to a function."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record; errors of the function are not caught, as a closed pipe ends a command."""
        self._show(record.getMessage())

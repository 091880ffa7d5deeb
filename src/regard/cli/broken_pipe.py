"""Standard output whose reader leaves early (``regard ... | head``): no error, and nothing to say."""

from __future__ import annotations

import os
import sys
from typing import NoReturn, final

from rich.console import Console


def exit_quietly() -> NoReturn:
    """End with exit code 0, and without the complaint of Python's own flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


@final
class PipedConsole(Console):
    """rich's console, which would leave with exit code 1 where the reader has left."""

    def on_broken_pipe(self) -> None:
        """Nobody reads on: done."""
        exit_quietly()

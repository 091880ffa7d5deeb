"""Broken pipes: when the reader of standard output exits early (``regard ... | head``), exit without an error."""

from __future__ import annotations

import os
import sys
from typing import NoReturn, final

from rich.console import Console


def exit_quietly() -> NoReturn:
    """Exit with code 0 and suppress the error of Python's own flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


@final
class PipedConsole(Console):
    """Console of rich that exits with code 0 on a broken pipe, where rich itself exits with code 1."""

    def on_broken_pipe(self) -> None:
        """Exit with code 0, without a message."""
        exit_quietly()

"""The command that a training prints at its end: how to use the model."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from regard.cli.stderr import say

if TYPE_CHECKING:
    from regard.train import RunResult


def say_next(done: RunResult, before: str, after: str) -> None:
    """Print a command with the model's folder between ``before`` and ``after``, once, for a model that learned."""
    if done.is_main and done.score is not None and done.learned:
        say(f"try: {before} {shlex.quote(str(done.out))} {after}")

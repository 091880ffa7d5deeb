"""``regard``: the command, its verbs, and how errors reach a shell user.

Exit codes: 0 done; 1 a defect of regard; 2 a wrong option or argument; 3 input that cannot be used;
4 a model that cannot be used; 5 the output exists or cannot be written; 6 an optional package is missing;
130 interrupted.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from regard.cli import embed, view
from regard.cli import list as list_verb
from regard.cli.pipe import leave_quietly
from regard.errors import RegardError


class Verbs(TyperGroup):
    """The verbs; each ends quietly when the reader of its output leaves."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            leave_quietly()
        return result


app = typer.Typer(
    name="regard",
    cls=Verbs,
    help="Attention you can trust, on real models, made visible.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done · 1 defect · 2 wrong option · 3 bad input · 4 bad model · "
    "5 output exists or unwritable · 6 package missing · 130 interrupted",
)
view.register(app)
embed.register(app)
list_verb.register(app)


def main() -> None:
    """Entry point of the ``regard`` command: runs a verb, and turns errors into messages and exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character gets a ?, not a crash
            stream.reconfigure(errors="replace")
    try:
        app()
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

"""``regard``: the command, its verbs, and how errors reach a shell user.

Exit codes: 0 done; 1 a defect of regard; 2 a wrong option or argument; 3 input that cannot be used;
4 a model that cannot be used; 5 the output exists or cannot be written; 6 an optional package is missing;
130 interrupted.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from regard.cli import embed, evaluate, export, train, translate, view
from regard.cli import list as list_verb
from regard.cli.pipe import leave_quietly
from regard.cli.verb import untyped_flags
from regard.errors import OutputError, RefusedError, RegardError, unwritable


class Verbs(TyperGroup):
    """The verbs; each ends quietly when the reader of its output leaves, and with a word when interrupted."""

    def get_params(self, ctx: Any) -> Any:
        """The options before the verb."""
        found = super().get_params(ctx)
        untyped_flags(found)
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            leave_quietly()
        except KeyboardInterrupt:
            _interrupted()
        return result


app = typer.Typer(
    name="regard",
    cls=Verbs,
    help="Attention you can trust, on real models, made visible.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done · 1 defect · 2 wrong option · 3 bad input · 4 bad model · "
    "5 output exists or unwritable · 6 package missing · 130 interrupted",
)


def _say_version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        print(f"regard {version('regard')}")
        raise typer.Exit
    return False


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """What may stand before the verb."""
    del version  # _say_version has seen to it


view.register(app)
embed.register(app)
train.register(app)
translate.register(app)
evaluate.register(app)
export.register(app)
list_verb.register(app)


def main() -> None:
    """Entry point of the ``regard`` command: runs a verb, and turns errors into messages and exit codes."""
    try:
        _prepare_streams()
        _run()
    except RegardError as error:
        _fail(error)
    except KeyboardInterrupt:
        _interrupted()
    except OSError as error:
        _fail(_of_system(error))
    except (MemoryError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        _fail(_of_memory(error))


def _prepare_streams() -> None:
    """A stream that the shell closed is None in Python, and its number would go to the next file opened."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stdout is None:
        raise OutputError(
            "standard output is closed",
            expected="an open standard output",
            got="none",
            do="leave it open, or send it to a file, such as > out.txt",
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character gets a ?, not a crash
            stream.reconfigure(errors="replace")
    chosen = "PYTHONIOENCODING" in os.environ
    if isinstance(sys.stdout, io.TextIOWrapper) and not (chosen or sys.stdout.isatty()):
        # What goes into a file or a pipe is what -o would write.
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


def _run() -> None:
    """The verb, and its last output: what waits in the buffer would fail after ``main``, beyond our reach."""
    try:
        app()
    except SystemExit:
        sys.stdout.flush()
        raise


def _fail(error: RegardError) -> NoReturn:
    """Say what is wrong, and leave with the error's exit code."""
    with contextlib.suppress(OSError):
        print(f"regard: {_shown(error)}", file=sys.stderr, flush=True)
    for stream in (sys.stdout, sys.stderr):
        _empty(stream)
    sys.exit(error.exit_code)


def _interrupted() -> NoReturn:
    print("regard: interrupted", file=sys.stderr)
    sys.exit(130)


def _empty(stream: TextIO | None) -> None:
    """Write what is left; what cannot be written is given up, or Python would complain of it at its exit."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _shown(error: RegardError) -> RegardError:
    """The error with what would act on a terminal written out: names of files and models come from anyone."""
    from regard.view.visible import visible

    return RegardError(
        visible(error.what), expected=visible(error.expected), got=visible(error.got), do=visible(error.do)
    )


def _is_of_memory(error: Exception) -> bool:
    """Whether memory was refused. torch has a class of errors for a GPU's, and only words for the CPU's."""
    names = {one.__name__ for one in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator" in str(error)


def _of_memory(error: Exception) -> RefusedError:
    first, *_ = str(error).strip().splitlines() or ["the system gave no more"]
    return RefusedError(
        "there is not enough memory",
        expected="room for what is computed at a time",
        got=first[:200],
        do="take a smaller --batch-tokens, in training with --accumulate instead; or less text, or a smaller model",
    )


def _of_system(error: OSError) -> OutputError:
    """Our words for a refusal of the system; one without the name of a file is about standard output."""
    name = "standard output" if error.filename is None else str(error.filename)
    return unwritable(f"{name} cannot be written", error)

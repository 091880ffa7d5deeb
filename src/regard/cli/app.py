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
from typing import Annotated, Any, NoReturn, TextIO, final

import typer
from typer.core import TyperGroup

from regard.cli import embed, evaluate, export, train, translate, view
from regard.cli import list as list_verb
from regard.cli.broken_pipe import exit_quietly
from regard.cli.verb import hide_flag_types
from regard.errors import OutputError, RefusedError, RegardError, write_error


@final
class VerbGroup(TyperGroup):
    """The verbs; each ends quietly when the reader of its output leaves, and with a word when interrupted."""

    def get_params(self, ctx: Any) -> Any:
        """The options before the verb."""
        found = super().get_params(ctx)
        hide_flag_types(found)
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            exit_quietly()
        except KeyboardInterrupt:
            _exit_interrupted()
        return result


app = typer.Typer(
    name="regard",
    cls=VerbGroup,
    help="Attention you can trust, on real models, made visible.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done · 1 defect · 2 wrong option · 3 bad input · 4 bad model · "
    "5 output exists or unwritable · 6 package missing · 130 interrupted",
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        print(f"regard {version('regard')}")
        raise typer.Exit
    return False


@app.callback()
def global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
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
        _exit_with_error(error)
    except KeyboardInterrupt:
        _exit_interrupted()
    except OSError as error:
        _exit_with_error(_output_error(error))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        _exit_with_error(_out_of_memory_error(error))


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


def _exit_with_error(error: RegardError) -> NoReturn:
    """Say what is wrong, and leave with the error's exit code."""
    with contextlib.suppress(OSError):
        print(f"regard: {_escape_error(error)}", file=sys.stderr, flush=True)
    for stream in (sys.stdout, sys.stderr):
        _flush_or_discard(stream)
    sys.exit(error.exit_code)


def _exit_interrupted() -> NoReturn:
    print("regard: interrupted", file=sys.stderr)
    sys.exit(130)


def _flush_or_discard(stream: TextIO | None) -> None:
    """Write what is left; what cannot be written is given up, or Python would complain of it at its exit."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _escape_error(error: RegardError) -> RegardError:
    """The error with what would act on a terminal written out: names of files and models come from anyone."""
    from regard.view.escape_text import escape_text

    return RegardError(
        escape_text(error.what),
        expected=escape_text(error.expected),
        got=escape_text(error.got),
        do=escape_text(error.do),
    )


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory was refused. torch has a class of errors for a GPU's, and only words for the CPU's."""
    names = {one.__name__ for one in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator" in str(error)


def _out_of_memory_error(error: Exception) -> RefusedError:
    first, *_ = str(error).strip().splitlines() or ["the system gave no more"]
    return RefusedError(
        "there is not enough memory",
        expected="room for what is computed at a time",
        got=first[:200],
        do="take a smaller --batch-tokens, in training with --accumulate instead; or less text, or a smaller model",
    )


def _output_error(error: OSError) -> OutputError:
    """Our words for a refusal of the system; one without the name of a file is about standard output."""
    name = "standard output" if error.filename is None else str(error.filename)
    return write_error(f"{name} cannot be written", error)

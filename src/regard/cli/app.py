"""``regard``: the command, its verbs, and how errors reach a shell user.

Exit codes: 0 success; 1 bug in regard; 2 wrong option or argument; 3 unusable input; 4 unusable model;
5 the output exists or cannot be written; 6 an optional package is missing; 7 a cluster failed; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Annotated, Any, NoReturn, TextIO, final

import typer
from typer.core import TyperGroup

from regard.cli import (
    audit,
    bench,
    classify,
    conform,
    doctor,
    embed,
    evaluate,
    export,
    generate,
    play,
    train,
    transcribe,
    translate,
    view,
)
from regard.cli import list as list_verb
from regard.cli.argument_options import spell_for_shell
from regard.cli.broken_pipe import exit_quietly
from regard.cli.help_language import (
    find_language,
    find_own_words,
    typer_in_language,
    usage_errors_in_language,
    with_language,
)
from regard.cli.out_of_memory import is_out_of_memory, out_of_memory_error
from regard.cli.stderr import error_in_language, say
from regard.cli.verb import name_types
from regard.errors import LABELS, OutputError, RegardError, write_error
from regard.language import translate_message, use_language
from regard.log import notes_to


@final
@with_language
class VerbGroup(TyperGroup):
    """Group of all verbs: exits quietly on a broken pipe, and with a message on an interruption."""

    def get_params(self, ctx: Any) -> Any:
        """Return the options that precede the verb."""
        parameters = super().get_params(ctx)
        name_types(parameters)
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options that precede the verb."""
        with usage_errors_in_language():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; handle broken pipes and Ctrl-C."""
        try:
            with notes_to(say), usage_errors_in_language():
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
    epilog='Start with: regard view "I ate an apple." · For options and examples: regard COMMAND --help\n\n'
    "Exit codes: 0 success · 1 bug in regard · 2 wrong option · 3 unusable input · 4 unusable model · "
    "5 output exists or cannot be written · 6 package missing · 7 cluster failed · 130 interrupted",
)


def _print_version(value: bool) -> bool:
    if value:
        from importlib.metadata import version

        print(f"regard {version('regard')}")
        raise typer.Exit
    return False


@app.callback()
def global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that precede the verb."""
    del version  # handled by the callback _print_version


view.register(app)
embed.register(app)
train.register(app)
translate.register(app)
classify.register(app)
transcribe.register(app)
generate.register(app)
play.register(app)
evaluate.register(app)
export.register(app)
audit.register(app)
bench.register(app)
conform.register(app)
doctor.register(app)
list_verb.register(app)


def main() -> None:
    """Entry point of the ``regard`` command: run a verb, and turn errors into messages and exit codes."""
    with use_language(find_language(sys.argv[1:]), own_words=find_own_words(sys.argv[1:])), typer_in_language():
        try:
            _prepare_streams()
            _let_waiting_threads_sleep()
            _run()
        except RegardError as error:
            _exit_with_error(error)
        except KeyboardInterrupt:
            _exit_interrupted()
        except OSError as error:
            _exit_with_error(_output_error(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            _exit_with_error(out_of_memory_error(error))


def _prepare_streams() -> None:
    """Replace a closed standard error, refuse a closed standard output, and set encodings.

    Python sets a stream that the shell closed to None, and the next file opened would get its descriptor.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stdout is None:
        raise OutputError(
            "standard output is closed",
            expected="an open standard output",
            got="none",
            do="do not close it, or redirect it to a file: > out.txt",
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print ? for a character that the encoding lacks
            stream.reconfigure(errors="replace")
    user_encoding = "PYTHONIOENCODING" in os.environ
    if isinstance(sys.stdout, io.TextIOWrapper) and not (user_encoding or sys.stdout.isatty()):
        # A file or a pipe gets the same bytes as -o FILE.
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


def _let_waiting_threads_sleep() -> None:
    """Have OpenMP's threads sleep while they wait, unless the user chose something. Has no effect once torch is loaded.

    By default they poll for milliseconds after each operation. Beside another process that takes the time of the
    threads that compute: a command with all cores is then slower than with one.
    """
    chosen = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys()
    if not chosen and "torch" not in sys.modules:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def _run() -> None:
    """Run the verb and flush its output here: a flush after ``main`` could fail where no error is caught."""
    try:
        app(prog_name="regard")  # also as python -m regard, whose name is no variable of a shell
    except SystemExit:
        sys.stdout.flush()
        raise


def _exit_with_error(error: RegardError) -> NoReturn:
    """Print the error and exit with its exit code."""
    with contextlib.suppress(OSError):
        shown = _escape_error(error_in_language(error))
        labels = [translate_message(label) for label in LABELS]
        print(f"regard: {shown.format(spell_for_shell, labels)}", file=sys.stderr, flush=True)
    for stream in (sys.stdout, sys.stderr):
        _flush_or_discard(stream)
    sys.exit(error.exit_code)


def _exit_interrupted() -> NoReturn:
    print(translate_message("regard: interrupted"), file=sys.stderr)
    sys.exit(130)


def _flush_or_discard(stream: TextIO | None) -> None:
    """Flush a stream. If that fails, discard its buffer, or Python would print an error at exit."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _escape_error(error: RegardError) -> RegardError:
    """Escape terminal control characters in the error: names of files and models are untrusted."""
    from regard.escape_text import escape_text

    return RegardError(
        escape_text(error.what),
        expected=escape_text(error.expected),
        got=escape_text(error.got),
        do=escape_text(error.do),
    )


def _output_error(error: OSError) -> OutputError:
    """Convert a system error; one without a file name is about standard output."""
    name = "standard output" if error.filename is None else str(error.filename)
    return write_error(f"{name} cannot be written", error)

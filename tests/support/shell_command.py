"""Run commands of regard in the process of the tests, and read what a user of the shell reads."""

from __future__ import annotations

from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from regard.cli.app import app
from regard.cli.argument_options import spell_for_shell
from regard.errors import RegardError


def run(*arguments: object, columns: int = 100, **options: Any) -> Result:
    """Run ``regard`` with the arguments; ``options`` are those of typer's runner, such as ``input``."""
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [str(argument) for argument in arguments], **options)


def output(*arguments: object, **options: Any) -> str:
    """Run a command that succeeds, and return its standard output."""
    result = run(*arguments, **options)
    assert result.exit_code == 0, result.exception or result.stderr
    return result.stdout


def error_message(kind: type[RegardError], *arguments: object, **options: Any) -> str:
    """Return the message of the error of this type that a command ends with."""
    result = run(*arguments, **options)
    assert isinstance(result.exception, kind), result.exception or result.output
    return shell_message(result.exception)


def shell_message(error: BaseException | None) -> str:
    """The lines of an error, with arguments as options of the command that ran last."""
    assert isinstance(error, RegardError), repr(error)
    return error.format(spell_for_shell)

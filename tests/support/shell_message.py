"""The message of an error as a user of the shell reads it, for tests that run a verb in their own process."""

from regard.cli.argument_options import spell_for_shell
from regard.errors import RegardError


def shell_message(error: BaseException | None) -> str:
    """The lines of an error, with arguments as options of the command that ran last."""
    assert isinstance(error, RegardError), repr(error)
    return error.format(spell_for_shell)

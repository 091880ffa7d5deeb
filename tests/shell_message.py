"""The message of an error as a user of the shell reads it, for tests that run a verb in their own process."""

from regard.errors import RegardError
from regard.option_spelling import spell_for_shell


def shell_message(error: BaseException | None) -> str:
    """The lines of an error, with the shell's spelling of options."""
    assert isinstance(error, RegardError), repr(error)
    return error.format(spell_for_shell)

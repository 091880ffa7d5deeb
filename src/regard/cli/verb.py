"""``Verb``, the class of all commands: it refuses a second ``--data`` and stray words, and shows no type of flags.

Of ``--data a.txt --data b.txt`` a verb that reads one file would read the last, and say nothing of the other. Of other
options the last counts, as everywhere: an alias of the shell may hold a ``--model`` that is named anew.
"""

from __future__ import annotations

from typing import Any, final

from typer.core import TyperCommand, TyperGroup, TyperOption

from regard.errors import OptionError


@final
class Verb(TyperCommand):
    """A verb, or the task of one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._has_arguments = any(one.param_type_name == "argument" for one in self.params)
        self.allow_extra_args = not self._has_arguments  # they are refused here, with a word on options
        hide_flag_types(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        """``--help``, which shows no type either."""
        option = super().get_help_option(ctx)
        hide_flag_types([option])
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options. Raises OptionError for a second file where one is read, and for stray words."""
        if not ctx.resilient_parsing:  # as a shell asks how a line may go on
            self._check_single_data(ctx, args)
        rest = super().parse_args(ctx, args)
        if rest and not self._has_arguments and not ctx.resilient_parsing:
            raise self._stray_words_error(rest)
        return rest

    def _check_single_data(self, ctx: Any, args: list[str]) -> None:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        files = sum(isinstance(one, TyperOption) and "--data" in one.opts and not one.multiple for one in order)
        if files > 1:
            raise OptionError(
                f"--data is given {'twice' if files == 2 else f'{files} times'}",
                expected="one file",
                got=f"{files} files, of which only the last would be read",
                do="join them: cat a.txt b.txt | regard ... --data -",
            )

    def _stray_words_error(self, words: list[str]) -> OptionError:
        """Words without an option are most often the second of two files."""
        of_files = any("--data" in one.opts for one in self.params)
        return OptionError(
            f"no option takes {', '.join(words)}",
            expected="--data before each file" if of_files else "options only",
            got="a word without an option",
            do="such as --data train.de --data train.en" if of_files else "leave it out; --help lists the options",
        )


@final
class TaskGroup(TyperGroup):
    """A verb that has a command for each task."""

    def get_params(self, ctx: Any) -> Any:
        """The options before the task."""
        found = super().get_params(ctx)
        hide_flag_types(found)
        return found


def hide_flag_types(parameters: list[Any]) -> None:
    """Show no type of flags: ``--overwrite`` takes no value, so that "<bool>" beside it misleads."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = ""

"""``Verb``, the class of all commands: it refuses a second ``--data`` and stray words, and names types plainly.

Given ``--data a.txt --data b.txt``, a verb that reads one file would silently ignore the first. For other options the
last value wins, as is usual: a shell alias may set a ``--model`` that the user overrides.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, final

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from regard.cli.argument_options import use_options_of
from regard.cli.help_language import with_language
from regard.errors import OptionError

_METAVARS = {int: "N", float: "NUMBER", str: "TEXT"}


def _join_lines(text: str) -> str:
    """Join the lines of each paragraph, which Typer breaks where the source does."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


@final
@with_language
class Verb(TyperCommand):
    """Command of a verb, or of one of its tasks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._has_arguments = any(param.param_type_name == "argument" for param in self.params)
        self.allow_extra_args = not self._has_arguments  # refused in ``parse_args``, with a better message
        name_types(self.params)
        self.help = None if self.help is None else _join_lines(self.help)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the ``--help`` option, without a type."""
        option = super().get_help_option(ctx)
        name_types([option])
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options. Raises OptionError for stray words, and for a second ``--data`` of a single-file verb."""
        use_options_of(self.params)
        args = self._fill_optional_values(args)
        if not ctx.resilient_parsing:  # true during shell completion
            self._check_single_data(ctx, args)
        rest = super().parse_args(ctx, args)
        if rest and not self._has_arguments and not ctx.resilient_parsing:
            raise self._stray_words_error(rest)
        return rest

    def _fill_optional_values(self, args: list[str]) -> list[str]:
        """Give an empty value to each option that may stand alone, such as ``--ray``: its metavar is in brackets."""
        optional = {name for param in self.params if (param.metavar or "").startswith("[") for name in param.opts}
        filled = []
        for word, following in pairwise([*args, "--"]):
            alone = word in optional and following.startswith("-")
            filled.append(f"{word}=" if alone else word)
        return filled

    def _check_single_data(self, ctx: Any, args: list[str]) -> None:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        files = sum(
            isinstance(parameter, TyperOption) and "--data" in parameter.opts and not parameter.multiple
            for parameter in order
        )
        if files > 1:
            raise OptionError(
                f"--data is given {'twice' if files == 2 else f'{files} times'}",
                expected="one file",
                got=f"{files} files, and only the last one would be read",
                do="join them: cat a.txt b.txt | regard ... --data -",
            )

    def _stray_words_error(self, words: list[str]) -> OptionError:
        """Stray words are most often the second of two files."""
        of_files = any("--data" in param.opts for param in self.params)
        return OptionError(
            f"unexpected argument {', '.join(words)}",
            expected="--data before each file" if of_files else "options only",
            got="a word that belongs to no option",
            do="for example --data train.de --data train.en" if of_files else "leave it out; --help lists the options",
        )


@final
@with_language
class TaskGroup(TyperGroup):
    """Verb with one command per task."""

    def get_params(self, ctx: Any) -> Any:
        """Return the options that precede the task."""
        parameters = super().get_params(ctx)
        name_types(parameters)
        return parameters


def name_types(parameters: list[Any]) -> None:
    """Write the types of parameters in the help as a reader would, and not as Python does.

    ``--overwrite`` takes no value, so "<bool>" beside it would mislead; an argument's name says what it is.
    """
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif isinstance(parameter, TyperArgument):
            parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        elif parameter.metavar is None:
            parameter.metavar = _METAVARS.get(parameter.type_descriptor.annotation)

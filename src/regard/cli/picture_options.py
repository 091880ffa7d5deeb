"""Options of commands that read pictures, and how a command decides between texts and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, final

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.errors import OptionError, check_choice

KINDS = ("texts", "pictures")
_PANEL = "Pictures"

Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="NAME",
        help="What the data is: texts or pictures. Default: recognised by the names of the files.",
        show_default=False,
        autocompletion=choice_completer(KINDS),
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Leave broken pictures out, and report them.", rich_help_panel=_PANEL),
]


@final
@dataclass(frozen=True)
class PictureTrainingOptions:
    """What only pictures have, in the order of the help."""

    picture_size: Annotated[
        int | None,
        typer.Option(
            "--picture-size",
            min=1,
            help="Height and width of a new model's pictures. Default: chosen by the data, at most 128.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    augment: Annotated[
        str | None,
        typer.Option(
            "--augment",
            metavar="NAME",
            help="Random changes of training pictures: none, light (crop, flip) or strong (also TrivialAugment, "
            "erase, mixup, cutmix). Default: light.",
            show_default=False,
            autocompletion=choice_completer(("none", "light", "strong")),
            rich_help_panel=_PANEL,
        ),
    ] = None
    crop: Annotated[
        int | None,
        typer.Option(
            "--crop",
            min=0,
            help="Pixels of padding before a random crop; 0 disables it. Default: an eighth of the edge.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip", help="Mirror half of the pictures.", show_default=False, rich_help_panel=_PANEL
        ),
    ] = None
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Policy of random operations: none, trivial (TrivialAugment) or rand (RandAugment).",
            show_default=False,
            autocompletion=choice_completer(("none", "trivial", "rand")),
            rich_help_panel=_PANEL,
        ),
    ] = None
    erase: Annotated[
        float | None,
        typer.Option("--erase", help="Probability of erasing a rectangle.", show_default=False, rich_help_panel=_PANEL),
    ] = None
    mixup: Annotated[
        float | None,
        typer.Option("--mixup", help="Alpha of mixup; 0 disables it.", show_default=False, rich_help_panel=_PANEL),
    ] = None
    cutmix: Annotated[
        float | None,
        typer.Option("--cutmix", help="Alpha of cutmix; 0 disables it.", show_default=False, rich_help_panel=_PANEL),
    ] = None
    teacher: Annotated[
        str | None,
        typer.Option(
            "--teacher",
            metavar="FOLDER",
            help="Image classifier whose answers are learned too (distillation, DeiT).",
            show_default=False,
            autocompletion=model_completer(),
            rich_help_panel=_PANEL,
        ),
    ] = None
    distill: Annotated[
        str | None,
        typer.Option(
            "--distill",
            metavar="NAME",
            help="How they are learned: hard (its labels) or soft (its probabilities). Default: hard.",
            show_default=False,
            autocompletion=choice_completer(("hard", "soft")),
            rich_help_panel=_PANEL,
        ),
    ] = None
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory",
            metavar="GB",
            help="Decoded pictures to keep, in GB; more are decoded again in each epoch. Default: 2.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    skip_bad: SkipBad = False

    def given(self) -> list[str]:
        """The options that were given, by their names."""
        names = [one.name for one in fields(self) if getattr(self, one.name) not in (None, False)]
        names += ["no_flip"] if self.flip is False else []
        return [f"--{name.replace('_', '-')}" for name in names]

    def recipe_fields(self) -> dict[str, Any]:
        """The fields of an ``ImageClassificationRecipe`` that were given."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}
        if self.picture_size is not None:
            found["picture_size"] = (self.picture_size, self.picture_size)
        return found


def has_pictures(kind: str | None, data: Sequence[Path]) -> bool:
    """Whether the data are pictures: as ``--kind`` says, or by the files. Raises OptionError for another kind."""
    if kind is not None:
        check_choice("kind of data", kind, KINDS)
        return kind == "pictures"
    from regard.vision.labelled import are_pictures

    return are_pictures(data)


def refuse_options(names: Sequence[str], what: str, other: str, *, with_kind: bool = False) -> None:
    """Raise OptionError for options that have no effect on ``what``, such as "pictures", but on ``other``."""
    if names:
        raise OptionError(
            f"options of {other} have no effect on {what}",
            expected=f"options of {what}",
            got=", ".join(names),
            do=f"leave {', '.join(names)} out" + (f", or say what the data is: --kind {other}" if with_kind else ""),
        )

"""Options of commands that read pictures or sounds, and how a command decides between them and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias, final

import typer

from regard.cli.completion import choice_completer, model_completer
from regard.cli.shared_options import drop_none
from regard.errors import OptionError, check_choice

KINDS = ("texts", "pictures", "sounds")
_PANEL, _SOUNDS, _BOTH = "Pictures", "Sounds", "Pictures and sounds"

Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="NAME",
        help="What the data is: texts, pictures or sounds. Default: recognised by the names of the files.",
        show_default=False,
        autocompletion=choice_completer(KINDS),
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Leave broken files out, and report them.", rich_help_panel=_BOTH),
]


Memory = Annotated[
    float | None,
    typer.Option(
        "--memory",
        metavar="GB",
        help="Decoded files to keep, in GB; more are decoded again in each epoch. Default: 2.",
        show_default=False,
        rich_help_panel=_BOTH,
    ),
]


@final
@dataclass(frozen=True)
class MediaTrainingOptions:
    """What pictures and sounds have, in the order of the help."""

    augment: Annotated[
        str | None,
        typer.Option(
            "--augment",
            metavar="NAME",
            help="Random changes of training data: none; light (pictures: crop, flip; sounds: stripes of bands and "
            "frames are hidden); or strong (pictures: also TrivialAugment, erase, mixup, cutmix; sounds: also tempo, "
            "warp). Default: light.",
            show_default=False,
            autocompletion=choice_completer(("none", "light", "strong")),
            rich_help_panel=_BOTH,
        ),
    ] = None
    memory: Memory = None
    skip_bad: SkipBad = False


@final
@dataclass(frozen=True)
class SoundTrainingOptions:
    """What only sounds have, in the order of the help."""

    sample_rate: Annotated[
        int | None,
        typer.Option(
            "--sample-rate",
            min=1,
            help="Samples per second of a new model. Default: the most frequent rate of the sounds, at most 16,000.",
            show_default=False,
            rich_help_panel=_SOUNDS,
        ),
    ] = None
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds",
            help="Longer sounds count as broken. Default: 60.",
            show_default=False,
            rich_help_panel=_SOUNDS,
        ),
    ] = None
    mask_bands: Annotated[
        float | None,
        typer.Option(
            "--mask-bands",
            help="Largest share of the bands in each of two hidden stripes; 0 disables them. Default: 0.175.",
            show_default=False,
            rich_help_panel=_SOUNDS,
        ),
    ] = None
    mask_frames: Annotated[
        float | None,
        typer.Option(
            "--mask-frames",
            help="Largest share of the frames in each of two hidden stripes; 0 disables them. Default: 0.25, for "
            "transcribe 0.05.",
            show_default=False,
            rich_help_panel=_SOUNDS,
        ),
    ] = None
    tempo: Annotated[
        float | None,
        typer.Option(
            "--tempo",
            help="Largest relative change of the tempo; 0.15 in strong.",
            show_default=False,
            rich_help_panel=_SOUNDS,
        ),
    ] = None
    warp: Annotated[
        float | None,
        typer.Option(
            "--warp",
            help="Largest relative shift of frequencies; 0.1 in strong.",
            show_default=False,
            rich_help_panel=_SOUNDS,
        ),
    ] = None


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
    resized_crop: Annotated[
        float | None,
        typer.Option(
            "--resized-crop",
            metavar="SHARE",
            help="Instead: cut out a part of at least this share of the area, and resize it. 0.08 is usual for photos.",
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
    jitter: Annotated[
        float | None,
        typer.Option(
            "--jitter",
            help="Largest relative change of brightness, contrast and colour; 0.4 is usual for photos.",
            show_default=False,
            rich_help_panel=_PANEL,
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


OwnOptions: TypeAlias = MediaTrainingOptions | PictureTrainingOptions | SoundTrainingOptions
"""Options that only some kinds of data have; None, and False of --skip-bad, was not given."""


def list_given(options: OwnOptions) -> list[str]:
    """The options that were given, by their names."""
    names = [one.name for one in fields(options) if getattr(options, one.name) not in (None, False)]
    names += [
        f"no_{one.name}" for one in fields(options) if one.default is None and getattr(options, one.name) is False
    ]
    return [f"--{name.replace('_', '-')}" for name in names]


def recipe_fields(options: OwnOptions) -> dict[str, Any]:
    """The fields of a recipe that were given."""
    found = {one.name: getattr(options, one.name) for one in fields(options)}
    size = found.get("picture_size")
    return drop_none(found | ({} if size is None else {"picture_size": (size, size)}))


def find_kind(kind: str | None, data: Sequence[Path]) -> str:
    """What the data are: as ``--kind`` says, or by the files. Raises OptionError for another kind."""
    if kind is not None:
        check_choice("kind of data", kind, KINDS)
        return kind
    from regard.audio.labelled_sounds import are_sounds
    from regard.vision.labelled import are_pictures

    if are_sounds(data):
        return "sounds"
    return "pictures" if are_pictures(data) else "texts"


def refuse_options(names: Sequence[str], what: str, other: str, *, kind: str | None = None) -> None:
    """Raise OptionError for options that have no effect on ``what``, such as "pictures", but on ``other``.

    ``kind`` is that of the data if the options were meant.
    """
    if names:
        raise OptionError(
            f"options of {other} have no effect on {what}",
            expected=f"options of {what}",
            got=", ".join(names),
            do=f"leave {', '.join(names)} out" + (f", or say what the data is: --kind {kind}" if kind else ""),
        )

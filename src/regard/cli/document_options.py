"""Options of the commands that read documents: ``train`` and ``evaluate`` for ``lm`` and ``mlm``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

import typer

from regard.cli.completion import choice_completer
from regard.cli.training_options import LoraAlpha, LoraRank, ScheduleBySteps, TrainingOptions, setting_option

DocumentHyperparameters = Annotated[list[str] | None, setting_option("layers=6 or deviation=0.01")]
Documents = Annotated[
    list[Path],
    typer.Option(
        "--data",
        metavar="PATH",
        help="Texts: a file of plain text, JSON lines, or a folder of these; repeat for more.",
        show_default=False,
    ),
]
ValidationDocuments = Annotated[
    list[Path] | None,
    typer.Option(
        "--valid",
        metavar="PATH",
        help="Validation texts. Default: a tenth is held out, of one text its end, of several some documents.",
        show_default=False,
    ),
]
TextField = Annotated[
    str, typer.Option("--field", metavar="NAME", help="Field of JSON lines, or column of a table, with the text.")
]
Lines = Annotated[bool, typer.Option("--lines", help="Each line of a plain text is a document.")]
ModelSize = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="SIZE",
        help="Size of a new model: tiny, small or base. Default: chosen by the size of the data.",
        show_default=False,
        autocompletion=choice_completer(("tiny", "small", "base")),
    ),
]
BlocksPerBatch = Annotated[
    int | None,
    typer.Option("--batch", min=1, help="Blocks per batch. Default: chosen by the model size.", show_default=False),
]
TokensPerBatch = Annotated[
    int, typer.Option("--batch-tokens", min=1, help="Tokens per batch; lower it to save memory.")
]


@final
@dataclass(frozen=True)
class DocumentTrainingOptions(TrainingOptions):
    """How a model of documents is trained: a new one, or a trained one with low-rank adapters."""

    schedule: ScheduleBySteps = None
    lora: LoraRank = None
    lora_alpha: LoraAlpha = None
    patience: Annotated[
        int,
        typer.Option("--patience", min=0, help="Early stopping: validations without a better loss; 0 disables it."),
    ] = 10

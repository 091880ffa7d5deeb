"""``regard train transcribe``: train a model that writes the texts of sounds."""

from __future__ import annotations

import typer

from regard.cli.option_group import expand_option_groups
from regard.cli.training_options import Training, print_next_command, training_options
from regard.cli.verb import Verb
from regard.tasks.transcription import TranscriptionRecipe

NOTES = """
[bold]Data.[/bold] A folder in which the text of NAME.wav or NAME.flac is in NAME.txt beside it; or FILE.csv, FILE.tsv \
or FILE.jsonl with columns path and text (--columns names others), paths relative to the file; several with --data \
before each. Sounds without a text are skipped and reported. Broken sounds, and sounds that are too short for their \
text, are an error, or left out with --skip-bad. It needs the extra audio.

[bold]Texts[/bold] are learned as they are, character by character: upper and lower case and punctuation are different \
characters. White space is read as single spaces. A text needs no alignment with its sound.

[bold]Models.[/bold] A Conformer with a ctc head, new or, with --from, a trained one: it keeps its characters, and \
learns those that are new.

[bold]Output.[/bold] The folder OUT has all that `regard transcribe` needs; it is rewritten whenever the error rate on \
held-out sounds improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]Duration.[/bold] Training stops when the error rate has not improved for --patience validations, or at the limit \
of --minutes, --epochs or --steps. At first a model writes nothing, with an error rate of 1, while its loss falls. \
Fine-tuning without a limit takes 10 epochs.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the same \
weights as an uninterrupted run. To extend a finished run, raise the limit that ended it.

[bold]Several processes.[/bold] accelerate launch -m regard train transcribe ... on GPUs; torchrun --nproc-per-node 2 \
-m regard train transcribe ... on CPUs.

[bold]Examples[/bold]

  regard train transcribe --data speech/ --out model/

  regard train transcribe --data train.csv --valid dev.csv --columns clip,sentence --skip-bad --out model/

  regard train transcribe --data commands.tsv --tokenizer words --model tiny --minutes 30 --out commands/

  regard train transcribe --data mine.csv --from model/ --epochs 5 --out mine/
"""


def register(train: typer.Typer) -> None:
    """Add the command to its verb."""
    train.command("transcribe", cls=Verb, epilog=NOTES)(transcribe)


@expand_option_groups(**training_options(better="a better error rate"))
def transcribe(recipe: TranscriptionRecipe, training: Training) -> None:
    """Train a model that writes the texts of sounds, such as speech."""
    from regard.tasks.transcription import TranscriptionTask

    done = training.run(TranscriptionTask(recipe))
    print_next_command(done, "regard transcribe --model", "SOUND.wav")

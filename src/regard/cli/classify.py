"""``regard classify``: labels and probabilities of texts, pictures or sounds, from arguments, a file or a pipe."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from regard.cli.classify_media import classify_media
from regard.cli.completion import choice_completer, model_completer
from regard.cli.loaded_model import load_classifier, open_model
from regard.cli.media_options import refuse_options
from regard.cli.option_group import expand_option_groups
from regard.cli.output_file import check_output_file, open_output_file
from regard.cli.progress import line_progress
from regard.cli.shared_options import (
    ClassifierBatchTokens,
    Data,
    Device,
    Field,
    OutputFile,
    Overwrite,
    Texts,
    Threshold,
    Truncate,
    drop_none,
)
from regard.cli.stderr import say
from regard.cli.text_input import check_text_options, open_texts, read_usable
from regard.cli.translation_formats import to_one_line
from regard.cli.truncation_counts import TruncationCounts
from regard.cli.verb import Verb
from regard.errors import check_choice
from regard.fields import option_field

if TYPE_CHECKING:
    from regard.classification import Classifier, Prediction
    from regard.text.line import Line
    from regard.text.line_reader import LineReader

FORMATS = ("tsv", "jsonl", "labels")

NOTES = """
[bold]Formats.[/bold] tsv: label, probability, text. jsonl: text, labels, and the probability of every label. labels: \
the label alone. Several labels of a text are joined by a vertical bar, the most probable first.

[bold]Lines.[/bold] The output has one line per input line, in the same order; an empty line has no label. Memory does \
not grow with the length of the input. Lines from a pipe are answered as they arrive. With --skip-bad an unusable line \
has no label and gives a message. A run that ends early leaves the finished lines in OUT.partial.

[bold]Folders.[/bold] --data FOLDER is read as training reads it: each .txt file in it and in its folders is a text, \
in the order of their paths. Hidden files and folders are left out.

[bold]Pictures and sounds.[/bold] If the model reads pictures or sounds, the arguments are their paths, and a folder \
is all in it; --data names a folder, or a file with one path per line. In jsonl the path is the field picture or sound.

[bold]Pictures without training.[/bold] A CLIP compares pictures with the texts of --labels. Labels work best in a \
sentence like those of its training: --template "a photo of {}."

[bold]Examples[/bold]

  regard classify --model model/ "A moving story, beautifully told."

  regard classify --model model/ --data reviews.txt -o labels.tsv

  cat reviews.jsonl | regard classify --model model/ --field body --format jsonl

  regard classify --model flowers-model/ photo.jpg holiday/*.png

  regard classify --model birds-model/ dawn.wav garden.flac

  regard classify --model clip/ photo.jpg --labels "a cat,a dog" --template "a photo of {}."
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("classify", cls=Verb, epilog=NOTES)(classify)


@final
@dataclass(frozen=True)
class _ZeroShotOptions:
    """The labels of pictures that are classified without training."""

    labels: str | None = option_field(
        None, "Labels for pictures, with a CLIP: texts, separated by commas.", metavar="TEXTS"
    )
    template: tuple[str, ...] = option_field(
        (),
        "Text around a label, with {} in its place; may be repeated, and is then averaged. Default: {}.",
        metavar="TEXT",
    )

    def list_given(self) -> list[str]:
        """The options that were given."""
        return list(drop_none({"--labels": self.labels, "--template": self.template or None}))


@expand_option_groups()
def classify(
    texts: Texts = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="FOLDER",
            help="Folder that `regard train classify` wrote; required.",
            show_default=False,
            autocompletion=model_completer(),
        ),
    ] = "",
    data: Data = None,
    out: OutputFile = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Output format: tsv, jsonl or labels.",
            autocompletion=choice_completer(FORMATS),
        ),
    ] = "tsv",
    field: Field = None,
    *,
    zero_shot: _ZeroShotOptions,
    threshold: Threshold = None,
    batch_tokens: ClassifierBatchTokens = None,
    truncate: Truncate = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Write no label for an unusable line, and report it.")
    ] = False,
    device: Device = None,
    overwrite: Overwrite = False,
) -> None:
    """Classify texts, pictures or sounds with a trained model."""
    texts = texts or []
    check_choice("format of predictions", form, FORMATS)
    check_output_file(out, overwrite=overwrite, data=data)
    check_text_options(texts, data, field)
    opened, model_kind = open_model(model)
    kind = None if model_kind is None else model_kind.files
    if model_kind is not None and kind is not None:
        given = drop_none({"--threshold": threshold, "--batch-tokens": batch_tokens, "--truncate": truncate or None})
        refuse_options(list(given), kind.several, "texts")
        if kind.one != "picture":
            refuse_options(zero_shot.list_given(), kind.several, "a CLIP")
        classify_media(
            texts,
            data,
            field,
            out,
            form,
            kind=kind,
            model=opened,
            by_texts=model_kind.texts,
            device=device,
            skip_bad=skip_bad,
            labels=None if zero_shot.labels is None else [label.strip() for label in zero_shot.labels.split(",")],
            templates=[*zero_shot.template] or None,
        )
        return
    refuse_options(zero_shot.list_given(), "texts", "a CLIP")
    classifier = load_classifier(opened, device, batch_tokens, threshold)
    with open_texts(texts, data, field, reads_folder=True) as lines, open_output_file(out) as file:
        for some in _classify_lines(classifier, lines, out, skip_bad=skip_bad, truncate=truncate):
            for prediction in some:
                file.write(format_prediction(prediction, form))
            file.flush()  # a program at the other end of the pipe may wait for these
    if out is not None:
        say(f"{out}: written")


def format_prediction(prediction: Prediction, form: str) -> str:
    """Format a prediction in one of ``FORMATS``, line ending included."""
    labels = to_one_line("|".join(prediction.labels))
    if form == "labels":
        return f"{labels}\n"
    if form == "tsv":
        shares = "|".join(f"{prediction.probabilities[label]:.4f}" for label in prediction.labels)
        return f"{labels}\t{shares}\t{to_one_line(prediction.text)}\n"
    probabilities = {label: round(share, 6) for label, share in prediction.probabilities.items()}
    record = {"text": prediction.text, "labels": list(prediction.labels), "probabilities": probabilities}
    return json.dumps(record, ensure_ascii=False) + "\n"


def _classify_lines(
    classifier: Classifier, lines: LineReader | Sequence[Line], out: Path | None, *, skip_bad: bool, truncate: bool
) -> Iterator[list[Prediction]]:
    """Classify the lines chunk by chunk, as they arrive, with a progress bar over the file."""
    from regard.classification.classifier import CHUNK_TEXTS
    from regard.text.line_reader import chunk_lines

    done, truncated = 0, TruncationCounts()

    def read(line: Line) -> str:
        classifier.check(line.text, line.name, truncate=truncate)
        if truncate and classifier.is_too_long(line.text):
            truncated.add(line.name)
        return line.text

    with line_progress(lines, out) as advance:
        for some in chunk_lines(lines, CHUNK_TEXTS):
            texts, problem = read_usable(some, read, skipped="without a label" if skip_bad else None)
            yield classifier.classify(texts, truncate=truncate)
            if problem is not None:
                raise problem
            done += len(some)
            advance(done)
    truncated.report()

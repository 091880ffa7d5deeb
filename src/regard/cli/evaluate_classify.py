"""``regard evaluate classify``: measure a classifier on labelled texts, pictures or sounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.loaded_model import load_classifier, open_model
from regard.cli.media_input import read_entries, refuse_options
from regard.cli.shared_options import (
    ClassifierBatchTokens,
    Device,
    LabelColumns,
    ScoreFormat,
    SkipBad,
    Threshold,
    Truncate,
    Weights,
    check_score_format,
    drop_none,
    model_option,
)
from regard.cli.text_input import TruncationCounts
from regard.cli.verb import Verb
from regard.columns import parse_columns
from regard.device_names import AUTO
from regard.language import translate_message

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from regard.classification import ClassificationScores, Classifier, MediaClassifier
    from regard.classification.classifier import Predictor
    from regard.columns import Columns
    from regard.media import Medium

_MOST_COLUMNS = 12
"""Labels of a confusion matrix that is printed; of more labels the largest confusions are listed."""
_MOST_CONFUSIONS = 10

NOTES = """
[bold]Scores[/bold] are defined as in scikit-learn, with 0 for 0 / 0. Accuracy is the share of texts with exactly the \
right labels. Macro F1 is the mean over labels, micro F1 counts all decisions together.

[bold]Calibration.[/bold] Predictions are sorted into bins by their confidence; the expected calibration error is the \
mean difference between confidence and the share that is right. With several labels per text, each label of each text \
is a prediction of its own.

[bold]Examples[/bold]

  regard evaluate classify --model model/ --data test.csv

  regard evaluate classify --model model/ --data test.tsv --columns 2,1 --format json

  regard evaluate classify --model flowers-model/ --data flowers/test

  regard evaluate classify --model birds-model/ --data birds/test --skip-bad
"""


def register(evaluate: typer.Typer) -> None:
    """Add the command to its verb."""
    evaluate.command("classify", cls=Verb, epilog=NOTES)(classify)


def classify(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="PATH",
            help="Labelled texts, pictures or sounds, in any format of the training data; repeat for more.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str,
        model_option("Folder of the classifier to measure; required."),
    ] = "",
    columns: LabelColumns = None,
    threshold: Threshold = None,
    bins: Annotated[int, typer.Option("--bins", min=1, max=1000, help="Bins of the calibration.")] = 10,
    truncate: Truncate = False,
    batch_tokens: ClassifierBatchTokens = None,
    skip_bad: SkipBad = False,
    form: ScoreFormat = "text",
    weights: Weights = None,
    device: Device = AUTO,
) -> None:
    """Measure a classifier: accuracy, F1, each label, the confusion matrix, and calibration."""
    check_score_format(form)
    parsed = parse_columns(columns)
    opened, model_kind = open_model(model)
    from regard.classification import MediaClassifier, score_probabilities
    from regard.columns import LabelFormat
    from regard.media import TEXTS, label_matrix

    medium = TEXTS if model_kind is None or model_kind.texts or model_kind.files is None else model_kind.files
    if medium is TEXTS:
        refuse_options(["--skip-bad"] * skip_bad, "texts", "pictures and sounds")
        LabelFormat(parsed)  # raises before the model is loaded
        loaded = load_classifier(opened, {"device": device}, weights, batch_tokens, threshold)
        classifier, entries, read = _read_texts(loaded, data, parsed, truncate=truncate)
    else:
        given = drop_none({"--threshold": threshold, "--batch-tokens": batch_tokens, "--truncate": truncate or None})
        refuse_options(list(given), medium.plural, "texts")
        files = MediaClassifier.load(opened, device=device, weights=weights)
        classifier, entries, read = _read_files(files, medium, data, parsed)
    used, probabilities = _predict(classifier, entries, read, medium, skip_bad=skip_bad)
    scores = score_probabilities(
        probabilities,
        label_matrix(used, classifier.labels, "the model", medium),
        classifier.labels,
        several=classifier.several,
        threshold=classifier.threshold,
        bins=bins,
    )
    _show(scores, classifier.labels, form, medium.plural)


def _read_texts(
    classifier: Classifier, data: list[Path], columns: Columns | None, *, truncate: bool
) -> tuple[Predictor, list[Any], Callable[[Any], Any]]:
    """The labelled texts, and a function that makes a model input of each; errors in any of the texts come first."""
    from regard.media import TEXTS, check_labels
    from regard.text.labelled import LabelFormat, read_and_report_labelled

    texts = read_and_report_labelled(data, LabelFormat(columns, "several" if classifier.several else "one"))
    check_labels(texts, classifier.labels, "the model", TEXTS)
    truncated = TruncationCounts()
    for text in texts:
        classifier.check(text.text, f"the text in {text.place}", truncate=truncate)
        if truncate and classifier.is_too_long(text.text):
            truncated.add(text.place)
    truncated.report()
    return classifier, texts, lambda text: text.text


def _read_files(
    classifier: MediaClassifier, medium: Medium, data: list[Path], columns: Columns | None
) -> tuple[Predictor, list[Any], Callable[[Any], Any]]:
    """The classifier, the labelled files, and a function that makes a model input of each.

    Raises DataError for labels that the model lacks.
    """
    from regard.media import check_labels, read_and_report_labelled

    files = read_and_report_labelled(data, medium, columns)
    check_labels(files, classifier.labels, "the model", medium)
    return classifier, files, lambda file: classifier.read(file.content, name=file.place)


def _predict(
    classifier: Predictor, entries: list[Any], read: Callable[[Any], Any], medium: Medium, *, skip_bad: bool
) -> tuple[list[Any], Any]:
    """The entries that can be read, and the probabilities of their labels (entries, labels)."""
    import numpy as np

    found, used = [], []
    for good, inputs in read_entries(entries, read, medium, skip_bad=skip_bad):
        found.append(classifier.probabilities_of(inputs).numpy())
        used += good
    return used, np.concatenate(found)


def _show(scores: ClassificationScores, labels: tuple[str, ...], form: str, plural: str) -> None:
    """Print the scores of inputs, which ``plural`` names, such as "texts", as tables or as JSON."""
    if form == "json":
        print(json.dumps(_to_json(scores, labels, plural), indent=2, ensure_ascii=False))
        return
    from regard.cli.broken_pipe import PipedConsole

    print_scores(scores, PipedConsole(highlight=False, markup=False), plural=plural)


def print_scores(scores: ClassificationScores, console: Console, *, plural: str = "texts") -> None:
    """Print the scores as tables; ``plural`` names the inputs."""
    from rich.text import Text

    averages = f"macro F1 {scores.macro_f1:.4f}   micro F1 {scores.micro_f1:.4f}"
    console.print(translate_message(f"accuracy {scores.accuracy:.4f}   {averages}   loss {scores.loss:.4f}"))
    baseline = f"always answering {scores.majority} has an accuracy of {scores.baseline:.4f}"
    console.print(_plain(translate_message(f"{scores.texts:,} {plural}; {baseline}") + "\n"))
    console.print(_label_table(scores, plural))
    console.print()
    if scores.confusion is not None and len(scores.labels) <= _MOST_COLUMNS:
        console.print(
            Text(translate_message("Confusion: true label in rows, predicted label in columns"), style="bold")
        )
        console.print(_confusion_table(scores))
        console.print()
    elif scores.confusion is not None:
        title = f"Largest confusions: true label, predicted label, {plural}"
        console.print(Text(translate_message(title), style="bold"))
        console.print(_confusion_list(scores, plural))
        console.print()
    calibration = f"Calibration: expected error {scores.calibration_error:.4f}"
    console.print(Text(translate_message(calibration), style="bold"))
    console.print(_calibration_table(scores))


def _to_json(scores: ClassificationScores, labels: tuple[str, ...], plural: str) -> dict[str, Any]:
    fields = {plural if name == "texts" else name: value for name, value in asdict(scores).items()}
    confusion = fields.pop("confusion")
    if confusion is not None:
        fields["confusion"] = {"labels": list(labels), "true_by_predicted": confusion}
    return fields


def _plain(text: str) -> str:
    """A line with terminal control characters escaped: labels are untrusted."""
    from regard.escape_text import escape_text

    return escape_text(text.rstrip("\n")) + ("\n" if text.endswith("\n") else "")


def _make_table(*columns: str) -> Table:
    """A table without lines; its first column is a label, the others are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(_plain(name), justify="left" if number == 0 else "right", no_wrap=number > 0)
    return table


def _label_table(scores: ClassificationScores, plural: str) -> Table:
    from rich.text import Text

    headings = ("label", "precision", "recall", "F1", plural, "predicted")
    table = _make_table(*map(translate_message, headings))
    for label in scores.labels:
        numbers = (f"{label.precision:.4f}", f"{label.recall:.4f}", f"{label.f1:.4f}")
        table.add_row(Text(_plain(label.label)), *numbers, f"{label.support:,}", f"{label.predicted:,}")
    return table


def _confusion_table(scores: ClassificationScores) -> Table:
    from rich.text import Text

    names = [label.label for label in scores.labels]
    table = _make_table("", *names)
    for name, row in zip(names, scores.confusion or (), strict=True):
        table.add_row(Text(_plain(name)), *(f"{count:,}" for count in row))
    return table


def _confusion_list(scores: ClassificationScores, plural: str) -> Table:
    from rich.text import Text

    names = [label.label for label in scores.labels]
    wrong = [
        (count, true, predicted)
        for true, row in enumerate(scores.confusion or ())
        for predicted, count in enumerate(row)
        if true != predicted and count
    ]
    table = _make_table(*map(translate_message, ("true", "predicted", plural)))
    for count, true, predicted in sorted(wrong, reverse=True)[:_MOST_CONFUSIONS]:
        table.add_row(Text(_plain(names[true])), Text(_plain(names[predicted])), f"{count:,}")
    return table


def _calibration_table(scores: ClassificationScores) -> Table:
    table = _make_table(*map(translate_message, ("confidence", "predictions", "mean confidence", "accuracy")))
    for part in scores.calibration:
        if part.count:
            bounds = f"{part.low:.2f} - {part.high:.2f}"
            table.add_row(bounds, f"{part.count:,}", f"{part.confidence:.4f}", f"{part.right:.4f}")
    return table

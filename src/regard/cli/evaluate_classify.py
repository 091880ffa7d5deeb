"""``regard evaluate classify``: measure a classifier on labelled texts, pictures or sounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.completion import model_completer
from regard.cli.loaded_model import load_classifier, open_model
from regard.cli.media_options import refuse_options
from regard.cli.shared_options import (
    ClassifierBatchTokens,
    Device,
    LabelColumns,
    ScoreFormat,
    SkipBad,
    Threshold,
    Truncate,
    check_score_format,
    drop_none,
)
from regard.cli.stderr import say
from regard.cli.truncation_counts import TruncationCounts
from regard.cli.verb import Verb
from regard.columns import parse_columns
from regard.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from regard.classification import ClassificationScores, Classifier
    from regard.columns import Columns
    from regard.media import LabelledFile, Medium
    from regard.models.model_folder import ModelFolder
    from regard.text.labelled import LabelledText

_MOST_COLUMNS = 12
"""Labels of a confusion matrix that is printed; of more labels the largest confusions are listed."""
_MOST_CONFUSIONS = 10
_FILES = 256
"""Files that are in memory at a time."""

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
        typer.Option(
            "--model",
            metavar="FOLDER",
            help="Folder of the classifier to measure; required.",
            show_default=False,
            autocompletion=model_completer(),
        ),
    ] = "",
    columns: LabelColumns = None,
    threshold: Threshold = None,
    bins: Annotated[int, typer.Option("--bins", min=1, max=1000, help="Bins of the calibration.")] = 10,
    truncate: Truncate = False,
    batch_tokens: ClassifierBatchTokens = None,
    skip_bad: SkipBad = False,
    form: ScoreFormat = "text",
    device: Device = None,
) -> None:
    """Measure a classifier: accuracy, F1, each label, the confusion matrix, and calibration."""
    check_score_format(form)
    parsed = parse_columns(columns)
    opened, model_kind = open_model(model)
    kind = None if model_kind is None or model_kind.texts else model_kind.files
    if kind is not None:
        given = drop_none({"--threshold": threshold, "--batch-tokens": batch_tokens, "--truncate": truncate or None})
        refuse_options(list(given), kind.several, "texts")
        scores, names = _score_files(kind, opened, data, parsed, bins=bins, skip_bad=skip_bad, device=device)
        _show(scores, names, form, kind.several)
        return
    refuse_options(["--skip-bad"] * skip_bad, "texts", "pictures and sounds")
    from regard.classification import score_probabilities
    from regard.media import TEXTS, label_matrix
    from regard.text.labelled import LabelFormat, read_and_report_labelled

    LabelFormat(parsed)  # raises before the model is loaded
    classifier = load_classifier(opened, device, batch_tokens, threshold)
    several = classifier.model.config.several
    texts = read_and_report_labelled(data, LabelFormat(parsed, "several" if several else "one"), say)
    truth = label_matrix(texts, classifier.labels, "the model", TEXTS)
    probabilities = _predict(classifier, texts, truncate=truncate)
    scores = score_probabilities(
        probabilities, truth, classifier.labels, several=several, threshold=classifier.threshold, bins=bins
    )
    _show(scores, classifier.labels, form, "texts")


def _show(scores: ClassificationScores, labels: tuple[str, ...], form: str, things: str) -> None:
    """Print the scores of ``things``, such as "texts", as tables or as JSON."""
    if form == "json":
        print(json.dumps(_to_json(scores, labels, things), indent=2, ensure_ascii=False))
        return
    from regard.cli.broken_pipe import PipedConsole

    print_scores(scores, PipedConsole(highlight=False, markup=False), things=things)


def print_scores(scores: ClassificationScores, console: Console, *, things: str = "texts") -> None:
    """Print the scores as tables; ``things`` is what was classified."""
    from rich.text import Text

    console.print(
        f"accuracy {scores.accuracy:.4f}   macro F1 {scores.macro_f1:.4f}   micro F1 {scores.micro_f1:.4f}   "
        f"loss {scores.loss:.4f}"
    )
    console.print(
        _plain(
            f"{scores.texts:,} {things}; always answering {scores.majority} has an accuracy of {scores.baseline:.4f}\n"
        )
    )
    console.print(_label_table(scores, things))
    console.print()
    if scores.confusion is not None and len(scores.labels) <= _MOST_COLUMNS:
        console.print(Text("Confusion: true label in rows, predicted label in columns", style="bold"))
        console.print(_confusion_table(scores))
        console.print()
    elif scores.confusion is not None:
        console.print(Text(f"Largest confusions: true label, predicted label, {things}", style="bold"))
        console.print(_confusion_list(scores, things))
        console.print()
    console.print(Text(f"Calibration: expected error {scores.calibration_error:.4f}", style="bold"))
    console.print(_calibration_table(scores))


def _predict(classifier: Classifier, texts: list[LabelledText], *, truncate: bool) -> Any:
    """The probabilities of the labels (texts, labels); errors in any of the texts come first."""
    import numpy as np

    from regard.cli.progress import count_progress
    from regard.media import TEXTS

    truncated = TruncationCounts()
    for one in texts:
        classifier.check(one.text, f"the text in {one.place}", truncate=truncate)
        if truncate and classifier.is_too_long(one.text):
            truncated.add(one.place)
    truncated.report()
    found = []
    with count_progress(len(texts), "texts") as advance:
        for begin in range(0, len(texts), TEXTS.chunk):
            some = [one.text for one in texts[begin : begin + TEXTS.chunk]]
            found.append(classifier.probabilities(some, truncate=truncate).numpy())
            advance(begin + len(some))
    return np.concatenate(found)


def _score_files(
    kind: Medium,
    model: str | ModelFolder,
    data: Sequence[Path],
    columns: Columns | None,
    *,
    bins: int,
    skip_bad: bool,
    device: str | None,
) -> tuple[ClassificationScores, tuple[str, ...]]:
    """Score the classifier on labelled files of a ``kind``: the scores, and the model's labels.

    Raises DataError for labels that the model lacks, and for a broken file, unless ``skip_bad``.
    """
    import numpy as np

    from regard.classification import MediaClassifier, score_probabilities
    from regard.cli.progress import count_progress
    from regard.media import check_labels, label_matrix, read_and_report_labelled
    from regard.tasks.labelled_data import report_bad_files

    classifier = MediaClassifier.load(model, device=device)
    files = read_and_report_labelled(data, kind, columns, say)
    check_labels(files, classifier.labels, "the model", kind)

    def read(one: LabelledFile) -> Any:
        try:
            return classifier.read(one.content, name=one.place)
        except DataError as error:
            return error

    found, used, problems = [], [], []
    with ThreadPoolExecutor(thread_name_prefix="decode") as pool, count_progress(len(files), kind.several) as advance:
        for begin in range(0, len(files), _FILES):
            some = files[begin : begin + _FILES]
            inputs = list(pool.map(read, some))
            problems += [one for one in inputs if isinstance(one, DataError)]
            good = [one for one in inputs if not isinstance(one, DataError)]
            found.append(classifier.probabilities_of(good).numpy())
            used += [one for one, made in zip(some, inputs, strict=True) if not isinstance(made, DataError)]
            advance(begin + len(some))
    report_bad_files(problems, len(files), kind, skip_bad=skip_bad, say=say)
    truth = label_matrix(used, classifier.labels, "the model", kind)
    return score_probabilities(np.concatenate(found), truth, classifier.labels, bins=bins), classifier.labels


def _to_json(scores: ClassificationScores, labels: tuple[str, ...], things: str) -> dict[str, Any]:
    fields = {things if name == "texts" else name: value for name, value in asdict(scores).items()}
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


def _label_table(scores: ClassificationScores, things: str) -> Table:
    from rich.text import Text

    table = _make_table("label", "precision", "recall", "F1", things, "predicted")
    for one in scores.labels:
        numbers = (f"{one.precision:.4f}", f"{one.recall:.4f}", f"{one.f1:.4f}")
        table.add_row(Text(_plain(one.label)), *numbers, f"{one.support:,}", f"{one.predicted:,}")
    return table


def _confusion_table(scores: ClassificationScores) -> Table:
    from rich.text import Text

    names = [one.label for one in scores.labels]
    table = _make_table("", *names)
    for name, row in zip(names, scores.confusion or (), strict=True):
        table.add_row(Text(_plain(name)), *(f"{count:,}" for count in row))
    return table


def _confusion_list(scores: ClassificationScores, things: str) -> Table:
    from rich.text import Text

    names = [one.label for one in scores.labels]
    wrong = [
        (count, true, predicted)
        for true, row in enumerate(scores.confusion or ())
        for predicted, count in enumerate(row)
        if true != predicted and count
    ]
    table = _make_table("true", "predicted", things)
    for count, true, predicted in sorted(wrong, reverse=True)[:_MOST_CONFUSIONS]:
        table.add_row(Text(_plain(names[true])), Text(_plain(names[predicted])), f"{count:,}")
    return table


def _calibration_table(scores: ClassificationScores) -> Table:
    table = _make_table("confidence", "predictions", "mean confidence", "right")
    for one in scores.calibration:
        if one.count:
            bounds = f"{one.low:.2f} - {one.high:.2f}"
            table.add_row(bounds, f"{one.count:,}", f"{one.confidence:.4f}", f"{one.right:.4f}")
    return table

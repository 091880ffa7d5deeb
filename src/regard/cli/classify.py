"""``regard classify``: labels and probabilities of texts, pictures or sounds, from arguments, a file or a pipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from regard.cli.loaded_model import choose_numbers, load_classifier, open_model
from regard.cli.media_input import MediaInput, open_media, read_media, refuse_options, write_answers
from regard.cli.option_group import expand_option_groups
from regard.cli.output_file import check_output_file
from regard.cli.shared_options import (
    ClassifierBatchTokens,
    Data,
    Device,
    Dtype,
    Field,
    OutputFile,
    Overwrite,
    Texts,
    Threshold,
    Truncate,
    Weights,
    drop_none,
    format_option,
    model_option,
)
from regard.cli.text_input import TruncationCounts, check_text_options
from regard.cli.translation_formats import to_one_line
from regard.cli.verb import Verb
from regard.device_names import AUTO
from regard.errors import OptionError, check_choice
from regard.fields import option_field

if TYPE_CHECKING:
    from regard.classification import Classifier, Prediction
    from regard.classification.classifier import Predictor
    from regard.classification.media_classifier import FilePredictor
    from regard.models.kinds import ModelKind
    from regard.models.model_folder import ModelFolder

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
        model_option("Folder that `regard train classify` wrote; required."),
    ] = "",
    data: Data = None,
    out: OutputFile = None,
    form: Annotated[
        str,
        format_option("Output format: tsv, jsonl or labels.", FORMATS),
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
    weights: Weights = None,
    device: Device = AUTO,
    dtype: Dtype = AUTO,
    overwrite: Overwrite = False,
) -> None:
    """Classify texts, pictures or sounds with a trained model."""
    texts = texts or []
    check_choice("format of predictions", form, FORMATS)
    check_output_file(out, overwrite=overwrite, data=data)
    check_text_options(texts, data, field)
    opened, kind = open_model(model)
    of_texts = drop_none({"--threshold": threshold, "--batch-tokens": batch_tokens, "--truncate": truncate or None})
    from regard.media import TEXTS

    medium = TEXTS if kind is None or kind.files is None else kind.files
    if medium is not TEXTS:
        refuse_options(list(of_texts), medium.plural, "texts")
    if medium.singular != "picture":
        refuse_options(zero_shot.list_given(), medium.plural, "a CLIP")
    truncated, numbers = TruncationCounts(), choose_numbers(device, dtype)
    classifier: Predictor
    read: Callable[[Any, str], Any]
    if medium is TEXTS:
        classifier = loaded = load_classifier(opened, numbers, weights, batch_tokens, threshold)
        read = partial(read_text, loaded, truncate=truncate, truncated=truncated)
    else:
        classifier = files = _load_file_classifier(opened, kind, zero_shot, numbers, weights)
        read = files.read

    def answer(inputs: list[MediaInput]) -> list[str]:
        return [format_prediction(prediction, form, medium.singular) for prediction in _classify(classifier, inputs)]

    with open_media(texts, data, field, medium) as lines:
        write_answers(read_media(lines, read, medium, out), answer, out, medium, lacking="a label", skip_bad=skip_bad)
    truncated.report()


def read_text(
    classifier: Classifier, text: str, name: str, *, truncate: bool, truncated: TruncationCounts
) -> str | None:
    """Check a text, called ``name`` in messages, and count it if it is truncated; None for a blank one.

    Raises DataError as ``Classifier.check``.
    """
    classifier.check(text, name, truncate=truncate)
    if truncate and classifier.is_too_long(text):
        truncated.add(name)
    return text if text.strip() else None


def _load_file_classifier(
    model: str | ModelFolder,
    kind: ModelKind | None,
    zero_shot: _ZeroShotOptions,
    numbers: Mapping[str, Any],
    weights: str | None,
) -> FilePredictor:
    """Load a classifier of files. Raises OptionError for a CLIP without labels, and for templates without labels."""
    from regard.classification import MediaClassifier, ZeroShotClassifier

    if zero_shot.labels is not None:
        labels = [label.strip() for label in zero_shot.labels.split(",")]
        templates = zero_shot.template or ("{}",)
        return ZeroShotClassifier.load(model, labels, templates=templates, **numbers, weights=weights)
    if zero_shot.template or (kind is not None and kind.texts):
        raise OptionError(
            "a CLIP classifies pictures into labels that are texts, and none is given",
            expected="--labels TEXTS, separated by commas",
            got="--template alone" if zero_shot.template else "no --labels",
            do='for example --labels "a cat,a dog"',
        )
    return MediaClassifier.load(model, **numbers, weights=weights)


def _classify(classifier: Predictor, inputs: list[MediaInput]) -> list[Prediction]:
    """The predictions, in order; an unusable input and a blank text have no label."""
    from regard.classification import Prediction

    rows = iter(classifier.probabilities_of([entry.content for entry in inputs if entry.content is not None]).tolist())
    return [
        Prediction(entry.name, (), {}) if entry.content is None else classifier.predict(entry.name, next(rows))
        for entry in inputs
    ]


def format_prediction(prediction: Prediction, form: str, field: str) -> str:
    """Format a prediction in one of ``FORMATS``, line ending included; ``field`` is the field of the input in JSON."""
    labels = to_one_line("|".join(prediction.labels))
    if form == "labels":
        return f"{labels}\n"
    if form == "tsv":
        shares = "|".join(f"{prediction.probabilities[label]:.4f}" for label in prediction.labels)
        return f"{labels}\t{shares}\t{to_one_line(prediction.text)}\n"
    probabilities = {label: round(share, 6) for label, share in prediction.probabilities.items()}
    record = {field: prediction.text, "labels": list(prediction.labels), "probabilities": probabilities}
    return json.dumps(record, ensure_ascii=False) + "\n"

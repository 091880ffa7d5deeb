"""``regard classify`` with a model that reads pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.output_file import open_output_file
from regard.cli.picture_input import has_clip_model, open_pictures, read_pictures
from regard.cli.stderr import say
from regard.cli.translation_formats import to_one_line
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from regard.classification import Prediction
    from regard.classification.picture_classifier import PicturePredictor
    from regard.cli.picture_input import PictureInput


def classify_pictures(
    paths: list[str],
    data: str | None,
    field: str | None,
    out: Path | None,
    form: str,
    *,
    model: str,
    device: str | None,
    skip_bad: bool,
    labels: list[str] | None = None,
    templates: list[str] | None = None,
) -> None:
    """Classify the pictures, and write a line for each; with ``labels`` by a CLIP.

    Raises DataError for a broken picture, unless ``skip_bad``.
    """
    classifier, broken = _load_classifier(model, device, labels, templates), 0
    with open_pictures(paths, data, field) as lines, open_output_file(out) as file:
        for some in read_pictures(lines, classifier.processor):
            good, problem = _usable(some, skip_bad=skip_bad)
            for prediction in _classify(classifier, good):
                file.write(_format(prediction, form))
            file.flush()  # a program at the other end of the pipe may wait for these
            if problem is not None:
                raise problem
            broken += sum(one.problem is not None for one in some)
    if broken:
        say(f"{broken:,} pictures without a label")
    if out is not None:
        say(f"{out}: written")


def _load_classifier(
    model: str, device: str | None, labels: list[str] | None, templates: list[str] | None
) -> PicturePredictor:
    """Load the classifier. Raises OptionError for a CLIP without labels, and for templates without labels."""
    from regard.classification import PictureClassifier, ZeroShotClassifier

    if labels is not None:
        return ZeroShotClassifier.load(model, labels, templates=templates or ["{}"], device=device)
    if templates or has_clip_model(model):
        raise OptionError(
            "a CLIP classifies pictures into labels that are texts, and none is given",
            expected="--labels TEXTS, separated by commas",
            got="--template alone" if templates else "no --labels",
            do='for example --labels "a cat,a dog"',
        )
    return PictureClassifier.load(model, device=device)


def _usable(some: list[PictureInput], *, skip_bad: bool) -> tuple[list[PictureInput], DataError | None]:
    """The pictures up to the first broken one, and its error; with ``skip_bad`` all, broken ones reported."""
    for number, one in enumerate(some):
        if one.problem is not None:
            if not skip_bad:
                return some[:number], one.problem
            say(f"without a label: {one.problem.what}")
    return some, None


def _classify(classifier: PicturePredictor, some: list[PictureInput]) -> list[Prediction]:
    """The predictions, in order; broken pictures have no label."""
    from regard.classification import Prediction

    rows = iter(classifier.probabilities_of_pixels([one.pixels for one in some if one.pixels is not None]).tolist())
    return [
        Prediction(one.name, (), {}) if one.pixels is None else classifier.predict(one.name, next(rows)) for one in some
    ]


def _format(prediction: Prediction, form: str) -> str:
    """Format a prediction as ``regard classify`` does for texts, the path in place of the text."""
    label = to_one_line(prediction.label or "")
    if form == "labels":
        return f"{label}\n"
    if form == "tsv":
        share = "" if prediction.label is None else f"{prediction.probabilities[prediction.label]:.4f}"
        return f"{label}\t{share}\t{to_one_line(prediction.text)}\n"
    probabilities = {name: round(share, 6) for name, share in prediction.probabilities.items()}
    record = {"picture": prediction.text, "labels": list(prediction.labels), "probabilities": probabilities}
    return json.dumps(record, ensure_ascii=False) + "\n"

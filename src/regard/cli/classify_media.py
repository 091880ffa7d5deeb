"""``regard classify`` and ``regard evaluate classify`` with a model that reads pictures or sounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.media_input import open_media, read_media, write_answers
from regard.cli.stderr import say
from regard.cli.translation_formats import to_one_line
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from regard.classification import ClassificationScores, Prediction
    from regard.classification.media_classifier import MediaClassifier
    from regard.cli.media_input import MediaInput
    from regard.columns import Columns
    from regard.media import LabelledFile, MediaKind
    from regard.models.model_folder import ModelFolder

_SCORED_CHUNK = 256
"""Files that are in memory at a time."""


def classify_media(
    paths: list[str],
    data: str | None,
    field: str | None,
    out: Path | None,
    form: str,
    *,
    kind: MediaKind,
    model: str | ModelFolder,
    by_texts: bool,
    device: str | None,
    skip_bad: bool,
    labels: list[str] | None = None,
    templates: list[str] | None = None,
) -> None:
    """Classify the files of a ``kind``, and write a line for each; ``by_texts`` pictures by a CLIP.

    Raises DataError for a broken file, unless ``skip_bad``.
    """
    classifier = _load_classifier(kind, model, device, labels, templates, by_texts=by_texts)

    def answer(files: list[MediaInput]) -> list[str]:
        return [_format(prediction, form, kind.one) for prediction in _classify(classifier, files)]

    with open_media(paths, data, field, kind) as lines:
        files = read_media(lines, lambda path, name: classifier.read(path, name=name), kind, out)
        write_answers(files, answer, out, kind, lacking="a label", skip_bad=skip_bad)


def _load_classifier(
    kind: MediaKind,
    model: str | ModelFolder,
    device: str | None,
    labels: list[str] | None,
    templates: list[str] | None,
    *,
    by_texts: bool,
) -> MediaClassifier:
    """Load the classifier. Raises OptionError for a CLIP without labels, and for templates without labels."""
    from regard.classification import ZeroShotClassifier

    if labels is not None:
        return ZeroShotClassifier.load(model, labels, templates=templates or ["{}"], device=device)
    if templates or by_texts:
        raise OptionError(
            "a CLIP classifies pictures into labels that are texts, and none is given",
            expected="--labels TEXTS, separated by commas",
            got="--template alone" if templates else "no --labels",
            do='for example --labels "a cat,a dog"',
        )
    return load_media_classifier(kind, model, device)


def load_media_classifier(kind: MediaKind, model: str | ModelFolder, device: str | None) -> MediaClassifier:
    """Load a trained classifier of files of a ``kind``."""
    from regard.classification import PictureClassifier, SoundClassifier

    found: type[PictureClassifier | SoundClassifier]
    found = PictureClassifier if kind is PictureClassifier.kind else SoundClassifier
    return found.load(model, device=device)


def _classify(classifier: MediaClassifier, some: list[MediaInput]) -> list[Prediction]:
    """The predictions, in order; broken files have no label."""
    from regard.classification import Prediction

    rows = iter(classifier.probabilities_of([one.content for one in some if one.problem is None]).tolist())
    return [
        classifier.predict(one.name, next(rows)) if one.problem is None else Prediction(one.name, (), {})
        for one in some
    ]


def _format(prediction: Prediction, form: str, field: str) -> str:
    """Format a prediction as ``regard classify`` does for texts, with the path as ``field``."""
    label = to_one_line(prediction.label or "")
    if form == "labels":
        return f"{label}\n"
    if form == "tsv":
        share = "" if prediction.label is None else f"{prediction.probabilities[prediction.label]:.4f}"
        return f"{label}\t{share}\t{to_one_line(prediction.text)}\n"
    probabilities = {name: round(share, 6) for name, share in prediction.probabilities.items()}
    record = {field: prediction.text, "labels": list(prediction.labels), "probabilities": probabilities}
    return json.dumps(record, ensure_ascii=False) + "\n"


def score_media(
    kind: MediaKind,
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

    from regard.classification import score_probabilities
    from regard.cli.progress import count_progress
    from regard.tasks.labelled_media import check_labels, make_truth, report_bad_files

    classifier = load_media_classifier(kind, model, device)
    files = _read_labelled(kind, data, columns)
    check_labels(files, classifier.labels, "the model", kind)

    def read(one: LabelledFile) -> Any:
        try:
            return classifier.read(one.content, name=one.place)
        except DataError as error:
            return error

    found, used, problems = [], [], []
    with ThreadPoolExecutor(thread_name_prefix="decode") as pool, count_progress(len(files), kind.several) as advance:
        for begin in range(0, len(files), _SCORED_CHUNK):
            some = files[begin : begin + _SCORED_CHUNK]
            inputs = list(pool.map(read, some))
            problems += [one for one in inputs if isinstance(one, DataError)]
            good = [one for one in inputs if not isinstance(one, DataError)]
            found.append(classifier.probabilities_of(good).numpy())
            used += [one for one, made in zip(some, inputs, strict=True) if not isinstance(made, DataError)]
            advance(begin + len(some))
    report_bad_files(problems, len(files), kind, skip_bad=skip_bad, say=say)
    truth = make_truth(used, classifier.labels)
    return score_probabilities(np.concatenate(found), truth, classifier.labels, bins=bins), classifier.labels


def _read_labelled(kind: MediaKind, data: Sequence[Path], columns: Columns | None) -> list[LabelledFile]:
    from regard.audio.labelled_sounds import read_and_report_labelled_sounds
    from regard.vision.labelled import read_and_report_labelled_pictures
    from regard.vision.picture_file import PICTURES

    read = read_and_report_labelled_pictures if kind is PICTURES else read_and_report_labelled_sounds
    return read(data, columns, say)

"""``regard evaluate classify`` with a model that reads pictures or sounds."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.classify_media import load_media_classifier
from regard.cli.stderr import say
from regard.errors import DataError

if TYPE_CHECKING:
    from regard.classification import ClassificationScores
    from regard.columns import Columns
    from regard.media import LabelledFile, MediaKind
    from regard.models.model_folder import ModelFolder

_CHUNK = 256
"""Files that are in memory at a time."""


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
        for begin in range(0, len(files), _CHUNK):
            some = files[begin : begin + _CHUNK]
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

"""``regard evaluate classify`` with a model that reads pictures."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.stderr import say
from regard.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from regard.classification import ClassificationScores
    from regard.text.labelled.columns import Columns

_CHUNK = 256
"""Pictures that are in memory at a time."""


def score_pictures(
    model: str, data: Sequence[Path], columns: Columns | None, *, bins: int, skip_bad: bool, device: str | None
) -> tuple[ClassificationScores, tuple[str, ...]]:
    """Score the classifier on labelled pictures: the scores, and the model's labels.

    Raises DataError for labels that the model lacks, and for a broken picture, unless ``skip_bad``.
    """
    import numpy as np

    from regard.classification import PictureClassifier, score_probabilities
    from regard.cli.progress import count_progress
    from regard.tasks.image_classification.data import check_labels
    from regard.tasks.image_classification.pixels import report_bad_pictures
    from regard.vision.labelled import LabelledPicture, read_and_report_labelled_pictures

    classifier = PictureClassifier.load(model, device=device)
    pictures = read_and_report_labelled_pictures(data, columns, say)
    check_labels(pictures, classifier.labels, "the model")

    def read(one: LabelledPicture) -> np.ndarray | DataError:
        try:
            return classifier.processor.to_pixels(one.picture, name=one.place)
        except DataError as error:
            return error

    found, labels, problems = [], [], []
    with ThreadPoolExecutor(thread_name_prefix="decode") as pool, count_progress(len(pictures), "pictures") as advance:
        for begin in range(0, len(pictures), _CHUNK):
            some = pictures[begin : begin + _CHUNK]
            pixels = list(pool.map(read, some))
            problems += [one for one in pixels if isinstance(one, DataError)]
            good = [one for one in pixels if not isinstance(one, DataError)]
            found.append(classifier.probabilities_of_pixels(good).numpy())
            labels += [one.label for one, made in zip(some, pixels, strict=True) if not isinstance(made, DataError)]
            advance(begin + len(some))
    report_bad_pictures(problems, len(pictures), skip_bad=skip_bad, say=say)
    truth = np.array([[label == one for one in classifier.labels] for label in labels], dtype=bool)
    return score_probabilities(np.concatenate(found), truth, classifier.labels, bins=bins), classifier.labels

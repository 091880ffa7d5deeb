"""The labels of texts as a matrix: one row for each text, one column for each label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from regard.errors import DataError
from regard.text.labelled.labelled_text import LabelledText

_SHOWN = 5


def label_matrix(texts: Sequence[LabelledText], labels: Sequence[str], what: str) -> Bool[np.ndarray, "texts labels"]:
    """True where a text has a label. Raises DataError for labels that ``what`` does not have, as ``check_labels``."""
    check_labels(texts, labels, what)
    number = {label: index for index, label in enumerate(labels)}
    matrix = np.zeros((len(texts), len(labels)), dtype=bool)
    for row, one in zip(matrix, texts, strict=True):
        row[[number[label] for label in one.labels]] = True
    return matrix


def check_labels(texts: Sequence[LabelledText], labels: Sequence[str], what: str) -> None:
    """Raise DataError for texts with labels that are not among ``labels``, those of ``what``."""
    known = set(labels)
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for one in texts:
        for label in one.labels:
            if label not in known:
                unknown[label].append(one.place)
    if unknown:
        shown = [f"{label!r} in {places[0]}" for label, places in sorted(unknown.items())[:_SHOWN]]
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise DataError(
            f"texts have labels that {what} lacks",
            expected=", ".join(labels[:8]) + (" .." if len(labels) > 8 else ""),
            got=", ".join(shown) + more,
            do="correct the labels, or add texts with them to the training data",
        )

"""The labels of texts or files as a matrix: one row for each of them, one column for each label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from regard.arguments import explain_arguments
from regard.errors import DataError
from regard.language import abbreviate_names
from regard.media.labelled_file import Labelled
from regard.media.medium import Medium

_SHOWN = 5


@explain_arguments
def label_matrix(
    entries: Sequence[Labelled], labels: Sequence[str], what: str, medium: Medium
) -> Bool[np.ndarray, "entries labels"]:
    """True where an entry has a label. Raises DataError for labels that ``what`` does not have, as ``check_labels``."""
    check_labels(entries, labels, what, medium)
    number = {label: index for index, label in enumerate(labels)}
    matrix = np.zeros((len(entries), len(labels)), dtype=bool)
    for row, entry in zip(matrix, entries, strict=True):
        row[[number[label] for label in entry.labels]] = True
    return matrix


@explain_arguments
def check_labels(entries: Sequence[Labelled], labels: Sequence[str], what: str, medium: Medium) -> None:
    """Raise DataError for entries of a medium with labels that are not among ``labels``, the labels of ``what``."""
    known = set(labels)
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for entry in entries:
        for label in entry.labels:
            if label not in known:
                unknown[label].append(entry.place)
    if unknown:
        shown = [f"{label!r} in {places[0]}" for label, places in sorted(unknown.items())]
        raise DataError(
            f"{medium.plural} have labels that {what} lacks",
            expected=", ".join(labels[:8]) + (" .." if len(labels) > 8 else ""),
            got=abbreviate_names(shown, _SHOWN),
            do=f"correct the labels, or add {medium.plural} with them to the training data",
        )

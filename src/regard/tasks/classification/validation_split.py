"""The split of texts into training and validation data, by label.

A text may occur in the data many times. If one copy were in the training data and another in the validation data, the
score would measure memorisation, so all copies are held out together. Of the texts of each label, or of each set of
labels, the same share is held out, so that rare labels are measured too. A text stays in the training data if no other
text there has one of its labels: a model cannot predict a label that it never saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

MAX_HELD_OUT = 2000
_HELD_OUT_SHARE = 0.1


def hold_out(
    texts: Sequence[str], labels: Sequence[Sequence[str]], *, seed: int, most: int = MAX_HELD_OUT
) -> list[bool]:
    """For each text, whether it is held out: 10 % of the different texts of each set of labels, at most about ``most``.

    A set of labels with two texts or more is in both parts. Sets with a single text are treated as one. A text that
    occurs with several sets belongs to the first. Every label is left in the training data.
    """
    sets: dict[str, frozenset[str]] = {}
    labels_of: dict[str, set[str]] = {}
    for text, own in zip(texts, labels, strict=True):
        sets.setdefault(text, frozenset(own))
        labels_of.setdefault(text, set()).update(own)
    groups: dict[frozenset[str], list[str]] = {}
    for text, own_set in sets.items():
        groups.setdefault(own_set, []).append(text)
    parts = [members for members in groups.values() if len(members) > 1]
    single = [members[0] for members in groups.values() if len(members) == 1]
    parts += [single] if single else []
    share = min(_HELD_OUT_SHARE, most / max(1, len(sets)))
    in_training = Counter(label for own in labels_of.values() for label in own)
    generator = np.random.default_rng(seed)
    held_out: set[str] = set()
    for members in parts:
        count = min(max(1, round(share * len(members))), len(members) - 1)
        shuffled = (members[index] for index in generator.permutation(len(members)).tolist())
        for text in shuffled:
            if count == 0:
                break
            if all(in_training[label] > 1 for label in labels_of[text]):
                in_training.subtract(labels_of[text])
                held_out.add(text)
                count -= 1
    return [text in held_out for text in texts]

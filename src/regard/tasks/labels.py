"""The labels of a data set: their order and balance, the split of the data by label, and heads that have other labels.

Integers are in the order of their size, before names by the alphabet.

A text may occur in the data many times. If one copy were in the training data and another in the validation data, the
score would measure memorisation, so all copies are held out together. Of the texts of each label, or of each set of
labels, the same share is held out, so that rare labels are measured too. A text stays in the training data if no other
text there has one of its labels: a model cannot predict a label that it never saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from regard.format_share import format_share

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


_SHOWN = 8
"""Labels to name on each side."""


def report_replaced_head(
    start: str, old: Sequence[str], new: Sequence[str], *, is_kept: bool, say: Callable[[str], None]
) -> None:
    """Report that the head of the model ``start`` is replaced by one of random weights for the labels ``new``.

    Says nothing if the head is kept, or if the model has no labels, so no head.
    """
    if is_kept or not old:
        return
    if tuple(old) == tuple(new):
        reason = "predicts in another way (one label, several labels or CTC)"
    elif set(old) == set(new):
        reason = "has its labels in another order"
    else:
        reason = f"has other labels ({_list(old)})"
    say(f"the head of {start} {reason}: it is replaced by a head with random weights for {_list(new)}")


def _list(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _SHOWN:,} more" if len(labels) > _SHOWN else ""
    return ", ".join(labels[:_SHOWN]) + more


_MOST_LISTED = 6
_FEW_TEXTS = 10
_IMBALANCE = 10


def describe_labels(
    labels: Sequence[str], texts: Sequence[Sequence[str]], *, several: bool, things: str = "texts"
) -> Iterator[str]:
    """Describe the labels of the training texts, or other ``things``: their frequency, and those that are rare."""
    counts = Counter(label for one in texts for label in one)
    ranked = sorted(labels, key=lambda label: -counts[label])
    shown = [f"{label} {counts[label]:,} ({format_share(counts[label] / len(texts))})" for label in ranked]
    more = f" and {len(shown) - _MOST_LISTED} more" if len(shown) > _MOST_LISTED else ""
    yield f"{len(labels)} labels: {', '.join(shown[:_MOST_LISTED])}{more}"
    if several:
        most = max(map(len, texts))
        none = sum(not one for one in texts)
        without = f"; {none:,} {'text has' if none == 1 else 'texts have'} none" if none else ""
        yield f"a text has up to {most} {'label' if most == 1 else 'labels'}{without}"
    few = [label for label in ranked if counts[label] < _FEW_TEXTS]
    if few:
        listed = ", ".join(f"{label} ({counts[label]})" for label in few[:_MOST_LISTED])
        yield f"fewer than {_FEW_TEXTS} {things} have the label {listed}{' ..' if len(few) > _MOST_LISTED else ''}"
    most_frequent, rarest = counts[ranked[0]], counts[ranked[-1]]
    if most_frequent >= _IMBALANCE * rarest:
        yield (
            f"the labels are imbalanced: {ranked[0]} has {most_frequent / rarest:,.0f} times as many {things} as "
            f"{ranked[-1]}; accuracy says little about rare labels, and class_weights='balanced' "
            "(--class-weights balanced) makes them count"
        )


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Sort labels: integers by size, then names by the alphabet."""
    return tuple(sorted(labels, key=_sort_key))


def _sort_key(label: str) -> tuple[bool, int, str]:
    is_number = label.lstrip("-").isdecimal() and label.isascii()
    return not is_number, int(label) if is_number else 0, label

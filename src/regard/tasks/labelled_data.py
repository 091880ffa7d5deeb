"""The labels of training data, whatever the medium: their order and balance, bad files, copies, and the split by label.

Integers are in the order of their size, before names by the alphabet.

A text may occur in the data many times. If one copy were in the training data and another in the validation data, the
score would measure memorisation, so all copies are held out together. Of the texts of each label, or of each set of
labels, the same share is held out, so that rare labels are measured too. A text stays in the training data if no other
text there has one of its labels: a model cannot predict a label that it never saw. The same holds for files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Bool

from regard.classification import majority_answer
from regard.errors import DataError
from regard.format_share import format_share
from regard.language import abbreviate_names, count_noun
from regard.log import log
from regard.media import Labelled, LabelledFile, MediaFile, Medium
from regard.tasks.sentences import Indices
from regard.text.skip_counts import SkipCounts

Entry = TypeVar("Entry")

_SHOWN = 5
_IMBALANCED_SHARE = 0.75
"""The share of the most frequent label above which accuracy hardly tells models apart."""


def find_labels(entries: Sequence[Labelled], kind: Medium, *, several: bool = False) -> tuple[str, ...]:
    """The labels of texts or files, in order; ``several`` may belong to each.

    Raises DataError if there is nothing to tell apart.
    """
    found = {label for entry in entries for label in entry.labels}
    constant = several and all(found == set(entry.labels) for entry in entries)
    if len(found) < (1 if several else 2) or constant:
        raise DataError(
            f"the training {kind.plural} all have the same label, so there is nothing to learn",
            expected=f"{kind.plural} with at least two different labels",
            got=f"{kind.count(len(entries))} with the label {', '.join(sorted(found)) or 'none'}",
            do=f"add {kind.plural} of another label, or check the column of the label (`columns=...`)",
        )
    return sort_labels(found)


def report_bad_files(problems: Sequence[DataError], of: int, kind: Medium, *, skip_bad: bool) -> None:
    """Report files that cannot be used. Raises DataError with their names, unless ``skip_bad`` and some are left."""
    if not problems:
        return
    if skip_bad and len(problems) < of:
        skips = SkipCounts()
        for problem in problems:
            skips.add(problem.what, f"a {kind.singular} cannot be used")
        for sentence in skips.sentences():
            log.info(sentence)
        return
    listed = "; ".join(problem.what for problem in problems[:_SHOWN])
    more = f"; and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
    raise DataError(
        f"{len(problems):,} of {of:,} {kind.plural} cannot be used",
        expected=f"complete {kind.plural}",
        got=f"{listed}{more}",
        do="replace them, or leave them out: `skip_bad=True`" if len(problems) < of else "check the path",
    )


def report_lost_labels(named: Sequence[LabelledFile], good: Sequence[LabelledFile], kind: Medium) -> None:
    """Report the labels of the ``named`` files that none of the ``good`` ones has, since all their files are broken."""
    left = {file.label for file in good}
    lost = Counter(file.label for file in named if file.label not in left)
    for label in sort_labels(lost):
        count = lost[label]
        broken = f"its only {kind.singular} is" if count == 1 else f"all of its {count:,} {kind.plural} are"
        log.info(f"the label {label} is dropped: {broken} broken")


def report_conflicts(
    digests: Sequence[str],
    files: Sequence[MediaFile | Labelled],
    values: Sequence[Hashable],
    kind: Medium,
    *,
    what: str = "labels",
) -> None:
    """Report texts or files of the same content, by ``digests``, with different ``values``, called ``what``."""
    first: dict[str, tuple[Hashable, MediaFile | Labelled]] = {}
    conflicting: dict[str, str] = {}
    for digest, entry, value in zip(digests, files, values, strict=True):
        earlier, file = first.setdefault(digest, (value, entry))
        if earlier != value:
            conflicting.setdefault(digest, f"{file.place} and {entry.place}")
    if conflicting:
        log.info(
            f"{count_noun(len(conflicting), f'{kind.singular} occurs', f'{kind.plural} occur')} with different {what}, "
            f"the first are {next(iter(conflicting.values()))}"
        )


def hold_out_files(
    digests: Sequence[str], labels: Sequence[Sequence[str]], kind: Medium, *, seed: int
) -> tuple[Indices, Indices]:
    """The indices of texts or files for training, and of others held out for validation; copies stay together.

    ``labels`` are the labels of each file; the same share of each label is held out; without labels, a share of all
    files.

    Raises DataError for too few files to hold any out.
    """
    held_out = np.array(hold_out(digests, labels, seed=seed, share=kind.held_out, limit=kind.max_held_out))
    has_labels, (_, copies) = any(labels), kind.copies or (kind.singular, kind.plural)
    training, held = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if not len(training) or not len(held):
        raise DataError(
            f"there are too few different {copies} to hold some out for validation",
            expected=f"at least 2 different {copies}" + (" of a label" if has_labels else ""),
            got=kind.count(len(digests)),
            do=f"give more {kind.plural}, or validation {kind.plural}: `validation=...`"
            + ("; if the columns are swapped, name them, that of the label last: `columns=...`" if has_labels else ""),
        )
    log.info(
        f"{kind.plural}: {len(training):,} for training; {len(held):,} held out for validation, the same share of each "
        "label"
        if has_labels
        else f"{kind.plural}: {len(training):,} for training; {len(held):,} held out for validation"
    )
    return training, held


def report_validation(digests: Sequence[str], others: Sequence[str], kind: Medium) -> None:
    """Report the numbers of files for training and of ``others`` for validation, and how many occur in both."""
    known, copies = len(set(others) & set(digests)), kind.copies or (kind.singular, kind.plural)
    if known:
        log.info(
            f"{count_noun(known, f'validation {copies[0]} also occurs', f'validation {copies[1]} also occur')} in the "
            "training data, so scores are inflated"
        )
    log.info(f"{kind.plural}: {len(digests):,} for training; {len(others):,} for validation")


def choose_metric(
    metric: str | None, truth: Bool[np.ndarray, "files labels"], labels: Sequence[str], kind: Medium
) -> str:
    """The metric that decides which weights are best; reports the score of the most frequent answer.

    None is accuracy, or macro F1 if one label has more than three quarters of the validation data, or if some have
    several labels or none.
    """
    answer, share = majority_answer(truth, labels)
    is_imbalanced = share > _IMBALANCED_SHARE or bool((truth.sum(axis=1) != 1).any())
    metric = metric or ("macro_f1" if is_imbalanced else "accuracy")
    shown = f"always answering {answer} is right for {format_share(share)} of the validation {kind.plural}"
    log.info(f"{shown}; the best model is chosen by {metric.replace('_f1', ' F1')}")
    return metric


def split_entries(
    entries: Sequence[Entry],
    others: Sequence[Entry] | None,
    kind: Medium,
    *,
    digest: Callable[[Entry], str],
    labels: Sequence[Sequence[str]],
    seed: int,
) -> tuple[list[Entry], list[Entry]]:
    """The entries for training and for validation: ``others``, or without any those that ``hold_out_files`` chooses.

    Entries with equal digests are copies of each other.
    """
    digests = [digest(entry) for entry in entries]
    if others is not None:
        report_validation(digests, [digest(entry) for entry in others], kind)
        return list(entries), list(others)
    training, held = hold_out_files(digests, labels, kind, seed=seed)
    return [entries[index] for index in training.tolist()], [entries[index] for index in held.tolist()]


def hold_out(
    texts: Sequence[str],
    labels: Sequence[Sequence[str]],
    *,
    seed: int,
    share: float = Medium.held_out,
    limit: int = Medium.max_held_out,
) -> list[bool]:
    """For each text, whether it is held out: a share of the different texts of each set of labels, about ``limit``.

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
    share = min(share, limit / max(1, len(sets)))
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


_SHOWN_LABELS = 8
"""Labels to name on each side."""


def report_replaced_head(start: str, old: Sequence[str], new: Sequence[str], *, is_kept: bool) -> None:
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
        reason = f"has other labels ({abbreviate_names(old, _SHOWN_LABELS)})"
    listed = abbreviate_names(new, _SHOWN_LABELS)
    log.info(f"the head of {start} {reason}: it is replaced by a head with random weights for {listed}")


_MOST_LISTED = 6
_FEW_TEXTS = 10
_IMBALANCE = 10


def describe_labels(
    labels: Sequence[str], texts: Sequence[Sequence[str]], *, several: bool, plural: str = "texts"
) -> Iterator[str]:
    """Describe the labels of the training inputs, which ``plural`` names: their frequency, and those that are rare."""
    counts = Counter(label for text in texts for label in text)
    ranked = sorted(labels, key=lambda label: -counts[label])
    shown = [f"{label} {counts[label]:,} ({format_share(counts[label] / len(texts))})" for label in ranked]
    yield f"{len(labels)} labels: {abbreviate_names(shown, _MOST_LISTED)}"
    if several:
        largest = max(map(len, texts))
        none = sum(not text for text in texts)
        several_labels = f"a text has up to {count_noun(largest, 'label')}"
        yield f"{several_labels}; {count_noun(none, 'text has', 'texts have')} none" if none else several_labels
    few = [label for label in ranked if counts[label] < _FEW_TEXTS]
    if few:
        listed = abbreviate_names([f"{label} ({counts[label]})" for label in few], _MOST_LISTED)
        yield f"fewer than {_FEW_TEXTS} {plural} have the label {listed}"
    most_frequent, rarest = counts[ranked[0]], counts[ranked[-1]]
    if most_frequent >= _IMBALANCE * rarest:
        yield (
            f"the labels are imbalanced: {ranked[0]} has {most_frequent / rarest:,.0f} times as many {plural} as "
            f"{ranked[-1]}; accuracy says little about rare labels, and `class_weights='balanced'` "
            "makes them count"
        )


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Sort labels: integers by size, then names by the alphabet."""
    return tuple(sorted(labels, key=_sort_key))


def _sort_key(label: str) -> tuple[bool, int, str]:
    is_number = label.lstrip("-").isdecimal() and label.isascii()
    return not is_number, int(label) if is_number else 0, label

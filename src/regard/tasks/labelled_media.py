"""The common part of tasks on labelled pictures and sounds: labels, bad files, copies, and which files are held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool

from regard.classification import majority_answer
from regard.errors import DataError
from regard.format_share import format_share
from regard.media import LabelledFile, MediaFile, Medium
from regard.tasks.labels import hold_out, sort_labels
from regard.tasks.sentences import Indices
from regard.text.skip_counts import SkipCounts

Say: TypeAlias = Callable[[str], None]

_SHOWN = 5
_IMBALANCED_SHARE = 0.75
"""The share of the most frequent label above which accuracy hardly tells models apart."""


def find_labels(files: Sequence[LabelledFile], kind: Medium) -> tuple[str, ...]:
    """The labels of the files, in order. Raises DataError if there is nothing to tell apart."""
    found = {one.label for one in files}
    if len(found) < 2:
        raise DataError(
            f"the training {kind.several} all have the same label, so there is nothing to learn",
            expected=f"{kind.several} with at least two different labels",
            got=f"{kind.count(len(files))} with the label {', '.join(found)}",
            do=f"add {kind.several} of another label, or check the column of the label (--columns)",
        )
    return sort_labels(found)


def check_labels(files: Sequence[LabelledFile], labels: Sequence[str], what: str, kind: Medium) -> None:
    """Raise DataError for files with labels that are not among ``labels``, those of ``what``."""
    unknown: dict[str, str] = {}
    for one in files:
        if one.label not in labels:
            unknown.setdefault(one.label, one.place)
    if unknown:
        raise DataError(
            f"{kind.several} have labels that {what} lacks",
            expected=", ".join(labels[:8]) + (" .." if len(labels) > 8 else ""),
            got=", ".join(f"{label!r} of {place}" for label, place in list(unknown.items())[:5]),
            do=f"correct the labels, or add {kind.several} of them to the training data",
        )


def make_truth(files: Sequence[LabelledFile], labels: Sequence[str]) -> Bool[np.ndarray, "files labels"]:
    """True where a file has a label."""
    number = {label: index for index, label in enumerate(labels)}
    return np.eye(len(labels), dtype=bool)[[number[one.label] for one in files]]


def report_bad_files(problems: Sequence[DataError], of: int, kind: Medium, *, skip_bad: bool, say: Say) -> None:
    """Report files that cannot be used. Raises DataError with their names, unless ``skip_bad`` and some are left."""
    if not problems:
        return
    if skip_bad and len(problems) < of:
        skips = SkipCounts()
        for one in problems:
            skips.add(one.what, f"a {kind.one} cannot be used")
        for sentence in skips.sentences():
            say(sentence)
        return
    listed = "; ".join(one.what for one in problems[:_SHOWN])
    more = f"; and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
    raise DataError(
        f"{len(problems):,} of {of:,} {kind.several} cannot be used",
        expected=f"complete {kind.several}",
        got=f"{listed}{more}",
        do="replace them, or leave them out: skip_bad=True (--skip-bad)" if len(problems) < of else "check the path",
    )


def report_lost_labels(named: Sequence[LabelledFile], good: Sequence[LabelledFile], kind: Medium, say: Say) -> None:
    """Report the labels of the ``named`` files that none of the ``good`` ones has, since all their files are broken."""
    left = {one.label for one in good}
    lost = Counter(one.label for one in named if one.label not in left)
    for label in sort_labels(lost):
        count = lost[label]
        broken = (
            f"the only {kind.one} of it is broken" if count == 1 else f"all {count:,} {kind.several} of it are broken"
        )
        say(f"the label {label} is gone, since {broken}: the model does not learn it")


def report_conflicts(
    digests: Sequence[str],
    files: Sequence[MediaFile],
    values: Sequence[str],
    kind: Medium,
    say: Say,
    *,
    what: str = "labels",
) -> None:
    """Report files of the same content, by their ``digests``, with different ``values``; ``what`` names these."""
    first: dict[str, tuple[str, MediaFile]] = {}
    conflicting: dict[str, str] = {}
    for digest, one, value in zip(digests, files, values, strict=True):
        earlier, file = first.setdefault(digest, (value, one))
        if earlier != value:
            conflicting.setdefault(digest, f"{file.place} and {one.place}")
    if conflicting:
        occur = f"{kind.one} occurs" if len(conflicting) == 1 else f"{kind.several} occur"
        say(f"{len(conflicting):,} {occur} with different {what}, the first are {next(iter(conflicting.values()))}")


def hold_out_files(
    digests: Sequence[str], labels: Sequence[Sequence[str]], kind: Medium, *, seed: int, say: Say
) -> tuple[Indices, Indices]:
    """The indices of the files for training and of those held out for validation; copies are held out together.

    ``labels`` are those of each file, of which the same share is held out; without any, of all files.

    Raises DataError for too few files to hold any out.
    """
    held_out = np.array(hold_out(digests, labels, seed=seed))
    has_labels = any(labels)
    training, held = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if not len(training) or not len(held):
        raise DataError(
            f"there are too few different {kind.several} to hold some out for validation",
            expected=f"at least 2 different {kind.several}" + (" of a label" if has_labels else ""),
            got=kind.count(len(digests)),
            do=f"give more {kind.several}, or validation {kind.several}: validation=... (--valid)",
        )
    alike = ", of each label alike" if has_labels else ""
    say(f"{kind.several}: {len(training):,} for training; {len(held):,} held out for validation{alike}")
    return training, held


def report_validation(digests: Sequence[str], others: Sequence[str], kind: Medium, say: Say) -> None:
    """Report the numbers of files for training and of ``others`` for validation, and how many occur in both."""
    known = len(set(others) & set(digests))
    if known:
        occur = f"{kind.one} also occurs" if known == 1 else f"{kind.several} also occur"
        say(f"{known:,} validation {occur} in the training data, so scores are inflated")
    say(f"{kind.several}: {len(digests):,} for training; {len(others):,} for validation")


def choose_metric(
    metric: str | None, truth: Bool[np.ndarray, "files labels"], labels: Sequence[str], kind: Medium, say: Say
) -> str:
    """The metric that decides which weights are best; reports the score of the most frequent answer.

    None is accuracy, or macro F1 if one label has more than three quarters of the validation files.
    """
    answer, share = majority_answer(truth, labels)
    metric = metric or ("macro_f1" if share > _IMBALANCED_SHARE else "accuracy")
    shown = f"always answering {answer} is right for {format_share(share)} of the validation {kind.several}"
    say(f"{shown}; the best model is chosen by {metric.replace('_f1', ' F1')}")
    return metric

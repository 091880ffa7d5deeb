"""The balance of a data set: how frequent each label is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from regard.format_share import format_share

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

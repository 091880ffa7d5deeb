"""The order of labels: integers by size, before names by the alphabet."""

from __future__ import annotations

from collections.abc import Iterable


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Sort labels: integers by size, then names by the alphabet."""
    return tuple(sorted(labels, key=_sort_key))


def _sort_key(label: str) -> tuple[bool, int, str]:
    is_number = label.lstrip("-").isdecimal() and label.isascii()
    return not is_number, int(label) if is_number else 0, label

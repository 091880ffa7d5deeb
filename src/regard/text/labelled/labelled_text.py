"""Labelled texts and skipped entries, and the labels of a cell or a JSON value.

neg                 one label
sport|politics      two labels, or one with a vertical bar in its name if a text has one label only
["sport", "arts"]   two labels; ["sport"] is one, [] is none
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TypeAlias, final

from regard.text.skip_counts import Skipped

SEPARATOR = "|"
"""Character between several labels."""


@final
@dataclass(frozen=True)
class LabelledText:
    """A text and its labels; ``place`` says where they were read, for messages."""

    text: str
    labels: tuple[str, ...]
    place: str


LabelledOrSkipped: TypeAlias = LabelledText | Skipped


def make_labelled(text: str, labels: tuple[str, ...] | None, place: str, *, split: bool) -> LabelledOrSkipped:
    """Make a labelled text; a ``Skipped`` for an empty text, no labels, and without ``split`` for several."""
    if not text.strip():
        return Skipped(place, "the text is empty")
    if labels is None or not (labels or split):
        return Skipped(place, "there is no label")
    if len(labels) > 1 and not split:
        return Skipped(place, "it has several labels, and gets one here (`labels=...`)")
    return LabelledText(text, labels, place)


def labels_of_cell(cell: str, *, split: bool) -> tuple[str, ...] | None:
    """The labels in a cell of a table: of a list, or with ``split`` between separators. None if the cell is empty."""
    cell = cell.strip()
    if cell.startswith("["):
        try:
            listed = json.loads(cell)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list) and (split or listed):
            return labels_of_value(listed, split=split)
    names = [part.strip() for part in cell.split(SEPARATOR)] if split else [cell]
    return tuple(dict.fromkeys(name for name in names if name)) or None


def labels_of_value(value: object, *, split: bool) -> tuple[str, ...] | None:
    """The labels in a JSON value: a string, a number, true or false, or a list of these. None if it is not a label."""
    if isinstance(value, list):
        found = [_scalar_name(label) for label in value]
        return tuple(dict.fromkeys(label for label in found if label)) if all(found) else None
    if isinstance(value, str):
        return labels_of_cell(value, split=split)
    name = _scalar_name(value)
    return (name,) if name else None


def _scalar_name(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else str(value)
    return value.strip() or None if isinstance(value, str) else None

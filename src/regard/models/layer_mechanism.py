"""What one layer's mechanism needs from its model: its depth, and the size of what a rotation rotates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.mechanism_catalogue import CatalogueRow, catalogue


def options_at_depth(mechanism: str, options: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
    """Return the options of a mechanism in the layer with ``depth`` layers below; it is added if it is an option."""
    row = _find_row(mechanism)
    return options if row is None or "depth" not in row.options else {"depth": depth, **options}


def count_score_parts(mechanism: str) -> int:
    """Return into how many parts with scores of their own a mechanism splits queries and keys."""
    row = _find_row(mechanism)
    return 1 if row is None else row.mechanism.score_parts


def _find_row(mechanism: object) -> CatalogueRow | None:
    """Find a mechanism in the catalogue; None for anything else, which the layer refuses."""
    if not isinstance(mechanism, str):
        return None
    return next((row for row in catalogue() if row.name == mechanism), None)

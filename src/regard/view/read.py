"""A model's attention over a text, as a reading: the one place where the views meet a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

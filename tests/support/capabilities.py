"""Masks that each mechanism of the catalogue supports, for tests that run over all mechanisms."""

import regard
from regard import masks
from regard.masks import Mask
from regard.mechanisms import Mechanism


def scale_head_dim(name: str, part: int) -> int:
    """Return the head_dim of a mechanism of the catalogue, each of whose parts has a size of ``part``."""
    return part * next(row.mechanism.traits.score_parts for row in regard.catalogue() if row.name == name)


def causal_or_none(mechanism: Mechanism) -> Mask | None:
    """Return a causal mask, or None if the mechanism has no causal form."""
    return None if mechanism.refuses_mask(masks.causal()) else masks.causal()

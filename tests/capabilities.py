"""Masks that each mechanism of the catalogue supports, for tests that run over all mechanisms."""

from regard import masks
from regard.masks import Mask
from regard.mechanisms import Mechanism


def causal_or_none(mechanism: Mechanism) -> Mask | None:
    """Return a causal mask, or None if the mechanism has no causal form."""
    return None if mechanism.refuses_mask(masks.causal()) else masks.causal()

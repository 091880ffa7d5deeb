"""What a mechanism of the catalogue takes, for tests that run over all of them."""

from regard import masks
from regard.masks import Mask
from regard.mechanisms import Mechanism


def causal_or_none(mechanism: Mechanism) -> Mask | None:
    """A causal mask, or none where the mechanism has no causal form."""
    return None if mechanism.refuses_mask(masks.causal()) else masks.causal()

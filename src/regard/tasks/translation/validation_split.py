"""The split of pairs into training and validation data.

A source may occur in the data many times, with the same translation or others. If one pair were in the training data
and another in the validation data, the score would measure memorisation. So all pairs of a source are held out
together. Sources are equal if the model reads the same text: "Delete %s" and "Delete  %d" are, once codes are
placeholders.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_HELD_OUT = 1000
_HELD_OUT_SHARE = 0.05


def hold_out(sources: Sequence[str], *, seed: int, most: int = MAX_HELD_OUT) -> list[bool]:
    """For each source, whether it is held out: 5 % of the different sources, at least one and at most ``most``."""
    different = list(dict.fromkeys(sources))
    count = min(most, max(1, round(_HELD_OUT_SHARE * len(different))), len(different) - 1)
    chosen = np.random.default_rng(seed).permutation(len(different))[: max(0, count)]
    held_out = {different[index] for index in chosen.tolist()}
    return [source in held_out for source in sources]

"""Pairs kept from training, to measure with.

A sentence may stand in the data many times, with the same translation or others. Were one of them learnt from and
another measured with, the score would tell of memory. So sentences are held out, not lines: all pairs of a source are.
Sources are the same where a model reads the same: "Delete %s" and "Delete  %d" are, once codes are placeholders.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_HELD_OUT = 1000
_HELD_OUT_SHARE = 0.05


def hold_out(sources: Sequence[str], *, seed: int, most: int = MAX_HELD_OUT) -> list[bool]:
    """Which places are held out: those of 5 % of the different sources, ``most`` of them at most, one at least."""
    different = list(dict.fromkeys(sources))
    count = min(most, max(1, round(_HELD_OUT_SHARE * len(different))), len(different) - 1)
    chosen = np.random.default_rng(seed).permutation(len(different))[: max(0, count)]
    kept = {different[index] for index in chosen.tolist()}
    return [source in kept for source in sources]

"""Pairs kept from training, to measure with.

A sentence may stand in the data many times, with the same translation or others. Were one of them learnt from and
another measured with, the score would tell of memory. So sentences are held out, not lines: all pairs of a source are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.text.pairs import Pair

MOST = 1000
_SHARE = 0.05


def held_out(pairs: Sequence[Pair], *, seed: int, most: int = MOST) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from, and pairs to measure with: of 5 % of the sources, ``most`` of them at most, one at least."""
    sources = list(dict.fromkeys(pair.source for pair in pairs))
    count = min(most, max(1, round(_SHARE * len(sources))), len(sources) - 1)
    chosen = np.random.default_rng(seed).permutation(len(sources))[: max(0, count)]
    kept = {sources[index] for index in chosen.tolist()}
    return [pair for pair in pairs if pair.source not in kept], [pair for pair in pairs if pair.source in kept]

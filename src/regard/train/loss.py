"""Cross-entropy with smoothed labels.

    L = sum_t (1 - e) (-log p_t[y_t]) + e / V sum_v (-log p_t[v]),    p_t = softmax(logits_t)

Szegedy et al. 2016, "Rethinking the Inception architecture", section 7; Vaswani et al. 2017, section 5.4. t goes over
the wanted tokens that are not padding, and V is the size of the vocabulary.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.cross_entropy import cross_entropy

_PAD = 0


def smoothed_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"], wanted: Int[Tensor, "batch length"], *, smoothing: float
) -> Float[Tensor, ""]:
    """The sum over all tokens that are not padding, at least in float32. ``smoothing`` is e.

    At padding the logits may be anything, NaN included, and their gradient is 0.
    """
    return cross_entropy(logits.flatten(0, 1), wanted.flatten(), smoothing=smoothing, ignored=_PAD).sum()

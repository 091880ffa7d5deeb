"""Cross-entropy with smoothed labels.

    L = sum_t (1 - e) (-log p_t[y_t]) + e / V sum_v (-log p_t[v]),    p_t = softmax(logits_t)

Szegedy et al. 2016, "Rethinking the Inception architecture", section 7; Vaswani et al. 2017, section 5.4. t goes over
the wanted tokens that are not padding, and V is the size of the vocabulary.

Padding of the wanted tokens is ``IGNORED``, which is no token of any vocabulary: the padding of a model's inputs may be
any token, even the one that ends a target, and that is to be learnt.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.operators.cross_entropy_op import cross_entropy

IGNORED = -100
"""What stands for padding among wanted tokens, by torch's convention."""


def smoothed_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"],
    wanted: Int[Tensor, "batch length"],
    *,
    smoothing: float,
    ignored: int = IGNORED,
) -> Float[Tensor, ""]:
    """The sum over all wanted tokens that are not ``ignored``, at least in float32. ``smoothing`` is e.

    At ignored tokens the logits may be anything, NaN included, and their gradient is 0.
    """
    return cross_entropy(logits.flatten(0, 1), wanted.flatten(), smoothing=smoothing, ignored=ignored).sum()

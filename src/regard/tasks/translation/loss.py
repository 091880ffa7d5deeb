"""The loss of a translator: cross-entropy of each target token, end tokens included.

    L = sum_t -(1 - e) log p_t[y_t] - e / V sum_v log p_t[v]            label smoothing: Szegedy et al. 2016, section 7

The sum is over the target tokens t, and V is the vocabulary size.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.tasks.sentences import Indices
from regard.tasks.translation.batches import Batches
from regard.train.loss import smoothed_cross_entropy


def pair_loss(model: nn.Module, batches: Batches, pairs: Indices, *, smoothing: float) -> Float[Tensor, ""]:
    """The loss summed over all target tokens of ``pairs``, indices into ``batches``: a scalar. ``smoothing`` is e."""
    batch = batches.batch(pairs).to(next(model.parameters()).device)
    # Padding after a target needs no mask: the decoder is causal, and the labels of padding are ignored.
    output = model(batch.source, batch.decoder_input, mask=masks.padding(batch.lengths))
    return smoothed_cross_entropy(output.logits, batch.labels, smoothing=smoothing)

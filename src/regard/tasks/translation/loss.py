"""The loss of a translator: cross-entropy of each token of the targets, their ends included.

    L = sum_t -(1 - e) log p_t[y_t] - e / V sum_v log p_t[v]            label smoothing: Szegedy et al. 2016, section 7

t goes over the tokens of the targets, and V is the size of the vocabulary.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.tasks.translation.batches import Batches, Indices
from regard.train.loss import smoothed_cross_entropy


def pair_loss(model: nn.Module, batches: Batches, pairs: Indices, *, smoothing: float) -> Float[Tensor, ""]:
    """The sum over all target tokens of ``pairs``, numbers of pairs in ``batches``. ``smoothing`` is e."""
    batch = batches.batch(pairs).to(next(model.parameters()).device)
    # Padding behind a target needs no mask: nothing before it looks at it, and its own losses do not count.
    output = model(batch.source, batch.decoder_input, mask=masks.padding(batch.lengths))
    return smoothed_cross_entropy(output.logits, batch.labels, smoothing=smoothing)

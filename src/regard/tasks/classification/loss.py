"""The loss of a classifier: cross-entropy for one label per text, binary cross-entropy for several.

    one        L = sum_t w[y_t] ((1 - e) (-log p_t[y_t]) + e / K sum_k (-log p_t[k]))         p_t = softmax(logits_t)
    several    L = sum_t sum_k -w_k y_tk log p_tk - (1 - y_tk) log(1 - p_tk)                  p_tk = sigmoid(logits_tk)

Balanced class weights give every label the same total weight: w_k = n / (K n_k) with one label per text, so that they
are 1 on average over the n texts; with several labels per text w_k = (n - n_k) / n_k, which makes having a label weigh
as much as not having it. e is the label smoothing factor.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard import masks
from regard.kernels.operators.cross_entropy_op import cross_entropy
from regard.tasks.classification.data import Batches
from regard.tasks.sentences import Indices
from regard.train.loss import IGNORE_INDEX


def text_loss(
    model: nn.Module,
    batches: Batches,
    texts: Indices,
    *,
    several: bool,
    smoothing: float = 0.0,
    weights: Float[Tensor, " labels"] | None = None,
) -> Float[Tensor, ""]:
    """The loss summed over ``texts``, indices into ``batches``: a scalar. ``weights`` are w; None is 1 for each."""
    batch = batches.batch(texts).to(next(model.parameters()).device)
    logits = model(batch.ids, mask=masks.padding(batch.lengths)).logits
    return label_loss(logits, batch.truth, several=several, smoothing=smoothing, weights=weights)


def label_loss(
    logits: Float[Tensor, "batch labels"],
    truth: Bool[Tensor, "batch labels"],
    *,
    several: bool,
    smoothing: float = 0.0,
    weights: Float[Tensor, " labels"] | None = None,
) -> Float[Tensor, ""]:
    """The loss of logits, summed, in float32 or wider; ``truth`` is True where a text has a label."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    weights = None if weights is None else weights.to(logits.device, wide)
    if several:
        return functional.binary_cross_entropy_with_logits(
            logits.to(wide), truth.to(wide), pos_weight=weights, reduction="sum"
        )
    labels = truth.to(torch.uint8).argmax(dim=1)
    losses = cross_entropy(logits, labels, smoothing=smoothing, ignored=IGNORE_INDEX)
    return losses.sum() if weights is None else (losses * weights[labels]).sum()


def balanced_weights(truth: Bool[np.ndarray, "texts labels"], *, several: bool) -> Float[Tensor, " labels"]:
    """The class weights (labels,) that balance texts with this ``truth`` (texts, labels); every label occurs."""
    counts = truth.sum(axis=0).astype(np.float64)
    texts, labels = truth.shape
    found = (texts - counts) / counts if several else texts / (labels * counts)
    return torch.from_numpy(found).float()

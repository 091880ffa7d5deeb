"""The loss of a batch: every sequence counts alike, whatever its source.

    L = sum_rows (mean over its actions of -log p  +  w mean over its observed texts of -log p),    w = 0.1
    L = sum_rows  mean over its tokens of text of -log p                                            texts and pictures

Reed et al. 2022, equation 2, with every token weighted alike, is for batches of long sequences of many tasks. Here a
sequence of text has as many targets as tokens, one of a grid two or three actions: texts would drown the actions. Texts
that an environment shows, such as a mission, are nearly always the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard.control.step_tokens import ACTION_POSITION
from regard.copy_to_device import copy_to
from regard.models import GatoBatch
from regard.models.gato import IGNORED

OBSERVED_TEXT_WEIGHT = 0.1


def token_losses(
    model: nn.Module, batch: GatoBatch, inputs: Sequence[NDArray[np.int64]] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each target: its loss in nats, whether it has the highest probability, its row, and whether it is an action.

    All have the shape (targets,), the first two on the device of the model, the others on that of the batch: a batch on
    the CPU is read without a wait for the model's device. An action is compared with every other id, also of other
    environments. ``inputs`` are the ids (length,) of each row that the model reads, if they are not those that it
    predicts.
    """
    labels = batch.labels(IGNORED)
    where = labels != IGNORED
    read = batch
    if inputs is not None:
        ids = batch.ids.clone()
        for row, own in enumerate(inputs):
            ids[row, : len(own)] = torch.from_numpy(own)
        read = replace(batch, ids=ids)
    logits = model(read, where=where).logits[0].float()
    targets = copy_to(labels[where], logits.device)
    rows = where.nonzero()[:, 0]
    following = torch.zeros_like(where)
    following[:, :-1] = (batch.local == ACTION_POSITION)[:, 1:]
    losses = functional.cross_entropy(logits, targets, reduction="none")
    return losses, logits.detach().argmax(-1) == targets, rows, following[where]


def batch_loss(
    model: nn.Module, batch: GatoBatch, inputs: Sequence[NDArray[np.int64]] | None = None
) -> Float[Tensor, ""]:
    """The loss summed over the sequences of a batch; ``inputs`` as for ``token_losses``."""
    losses, _, rows, is_action = token_losses(model, batch, inputs)
    count = len(batch.ids)
    actions, texts = (torch.bincount(rows[chosen], minlength=count) for chosen in (is_action, ~is_action))
    of_text = torch.where(actions > 0, OBSERVED_TEXT_WEIGHT, 1.0) / texts.clamp(min=1)
    weights = torch.where(is_action, (1.0 / actions.clamp(min=1))[rows], of_text[rows])
    return (losses * copy_to(weights, losses.device)).sum()

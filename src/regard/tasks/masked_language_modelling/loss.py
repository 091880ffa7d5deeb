"""The loss of a masked language model: the cross-entropy of the masked tokens, summed over blocks.

L = - sum_t log p(x_t | the tokens of its document in the block, with masks)        t: the chosen tokens

Logits are computed at these positions alone, a seventh of the time for a large vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard import masks
from regard.kernels.operators.cross_entropy_op import cross_entropy
from regard.tasks.language_modelling.blocks import IGNORED, TokenBlocks
from regard.text.token_masking import TokenMasking


@final
@dataclass(frozen=True, eq=False)
class MaskedBlocks:
    """Blocks with masks: ``blocks`` as a model reads them, labelled with the true tokens; ``chosen`` (rows, length)."""

    blocks: TokenBlocks
    chosen: Bool[Tensor, "rows length"]


def mask_blocks(blocks: TokenBlocks, masking: TokenMasking, generator: np.random.Generator) -> MaskedBlocks:
    """Mask tokens of all rows, in an order that the generator decides. Padding is never chosen."""
    ids = np.where(blocks.labels == IGNORED, masking.mask_id, blocks.ids)  # [MASK] itself is never chosen
    chosen = masking.choose(ids, generator)
    masked = torch.from_numpy(masking.replace(blocks.ids.numpy(), chosen, generator))
    return MaskedBlocks(
        TokenBlocks(masked, blocks.labels, blocks.documents, blocks.positions), torch.from_numpy(chosen)
    )


def masked_loss(
    model: nn.Module, masked: MaskedBlocks, rows: slice, *, absolute_positions: bool, device: torch.device
) -> Float[Tensor, ""]:
    """The loss summed over the chosen tokens of some rows, in nats: a scalar.

    ``absolute_positions`` is ``MaskedLanguageModel.has_absolute_positions``; ``model`` may be wrapped for several
    processes.
    """
    blocks, chosen = masked.blocks, masked.chosen[rows]
    options: dict[str, Any] = {}
    if blocks.documents is not None:
        options["mask"] = masks.documents(blocks.documents[rows])
        if absolute_positions and blocks.positions is not None:
            options["positions"] = blocks.positions[rows].to(device)
    logits = model(blocks.ids[rows].to(device), logits_at=chosen.to(device), **options).logits
    labels = blocks.labels[rows][chosen].to(device)
    loss: Tensor = cross_entropy(logits, labels, smoothing=0.0, ignored=IGNORED).sum()
    return loss

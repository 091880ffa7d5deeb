"""Validation of a masked language model: loss and accuracy on held-out documents with fixed masks, and samples.

The loss of a masked language model: the cross-entropy of the masked tokens, summed over blocks.

L = - sum_t log p(x_t | the tokens of its document in the block, with masks)        t: the chosen tokens

Logits are computed at these positions alone, a seventh of the time for a large vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard import masks
from regard.copy_to_device import copy_to
from regard.generation.masked_scores import MaskedText, TokenIds, mask_documents, predict, score_masked
from regard.generation.scores import perplexity_of
from regard.kernels.operators.cross_entropy_op import cross_entropy
from regard.models.masked_language_model import MaskedLanguageModel
from regard.tasks.language_modelling.blocks import IGNORED, TokenBlocks
from regard.tasks.recipe_task import sample_rows
from regard.tasks.sentences import Indices
from regard.text.token_masking import TokenMasking
from regard.text.tokenizer import Tokenizer
from regard.train import Validation


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
    model: nn.Module, masked: MaskedBlocks, rows: Indices, *, absolute_positions: bool, device: torch.device
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
            options["positions"] = copy_to(blocks.positions[rows], device)
    logits = model(copy_to(blocks.ids[rows], device), logits_at=chosen, **options).logits
    labels = copy_to(blocks.labels[rows][chosen], device)
    loss: Tensor = cross_entropy(logits, labels, smoothing=0.0, ignored=IGNORED).sum()
    return loss


_SEED = 1
"""The masks are the same in every validation of every run."""
_NUM_SAMPLES, _SAMPLE_TOKENS = 3, 32


@final
class MaskedValidation:
    """Measures models on ``documents``, token ids without special tokens, in texts of at most ``length`` tokens.

    The best weights are those with the least loss.
    """

    def __init__(
        self, documents: Sequence[TokenIds], tokenizer: Tokenizer, masking: TokenMasking, *, length: int
    ) -> None:
        self.documents, self.tokenizer, self.length, self._masking = documents, tokenizer, length, masking
        self.texts = mask_documents(documents, tokenizer, length=length, masking=masking, seed=_SEED)

    def measure(self, model: MaskedLanguageModel) -> Validation:
        """Measure loss, perplexity and accuracy of masked tokens, with samples of what is filled in."""
        nats, correct = score_masked(model, self.texts)
        tokens = sum(int(text.chosen.sum()) for text in self.texts)
        loss = nats / tokens
        metrics = {
            "loss": loss,
            "perplexity": perplexity_of(loss),
            "accuracy": correct / tokens,
        }
        return Validation(-loss, metrics, self._fill_in(model))

    def _fill_in(self, model: MaskedLanguageModel) -> tuple[str, ...]:
        """Some texts with masks, and what the model fills in."""
        lines: list[str] = []
        for text in self._sample_texts():
            logits, _ = predict(model, [text])
            filled = text.masked.copy()
            filled[text.chosen] = logits.argmax(dim=1).cpu().numpy()
            truth = torch.from_numpy(text.ids[text.chosen])
            chances = logits.softmax(dim=1).max(dim=1).values.tolist()
            found = zip(filled[text.chosen].tolist(), truth.tolist(), chances, strict=True)
            shown = ", ".join(
                f"{self._show(best)} {chance:.2f}" + ("" if best == true else f" (not {self._show(true)})")
                for best, true, chance in found
            )
            lines += [f"masked:    {self._decode(text, text.masked)}", f"filled in: {self._decode(text, filled)}"]
            lines.append(f"           {shown}")
        return tuple(lines)

    def _sample_texts(self) -> Sequence[MaskedText]:
        """The masked beginnings of some documents."""
        short = min(self.length, _SAMPLE_TOKENS)
        chosen = [self.documents[row] for row in sample_rows(len(self.documents), _NUM_SAMPLES)]
        begins = [ids[: short - sum(map(len, self.tokenizer.frame))] for ids in chosen]
        return mask_documents(begins, self.tokenizer, length=short, masking=self._masking, seed=_SEED)

    def _decode(self, text: MaskedText, ids: TokenIds) -> str:
        """The text of token ids, with [MASK] and without the special tokens around it."""
        before, after = map(len, self.tokenizer.frame)
        return self.tokenizer.decode(ids[before : len(text.ids) - after].tolist(), special=True)

    def _show(self, number: int) -> str:
        return (self.tokenizer.decode([number]) or str(self.tokenizer.token_text(number))).strip() or repr(" ")


def count_unknown(documents: Sequence[TokenIds], unknown: int | None) -> tuple[int, int]:
    """The number of unknown tokens of documents, and of all tokens."""
    count = 0 if unknown is None else sum(int(np.count_nonzero(ids == unknown)) for ids in documents)
    return count, sum(map(len, documents))

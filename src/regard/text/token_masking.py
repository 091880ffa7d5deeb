"""Mask tokens, for a model that learns to fill them in.

    of the tokens of a row, a share is chosen at random, 15 % in the paper; of these
        80 %    become [MASK]
        10 %    become another token at random
        10 %    stay as they are

Only chosen tokens are predicted. Special, padding and unknown tokens are neither chosen nor drawn. Each row has its own
share, rounded, and at least one token: Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers",
section 3.1, task 1, and the published code. A share of 30 % follows Warner et al. 2024 (ModernBERT), section 2.2.
ids (rows, length) -> ids (rows, length) as a model reads them, and whether each was chosen (rows, length).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Int

from regard.errors import CheckpointError, check_number
from regard.text.tokenizer import Tokenizer

SHARE = 0.15
_MASKED, _RANDOM = 0.8, 0.1
"""Of the chosen tokens, the shares that become [MASK] and another token."""


@final
@dataclass(frozen=True, eq=False)
class TokenMasking:
    """Masks a ``share`` of the tokens of each row.

    ``mask_id`` is the id of [MASK], ``usable`` are the ids of the tokens that stand for text, (usable tokens,) in
    ascending order.
    """

    share: float
    mask_id: int
    usable: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, share: float = SHARE) -> TokenMasking:
        """Make the masking for a tokenizer.

        Raises OptionError for a share outside 0 to 1, CheckpointError for a tokenizer without a mask token.
        """
        check_share(share)
        if tokenizer.mask_id is None:
            raise CheckpointError(
                "the tokenizer has no mask token",
                expected="[MASK] or <mask> in the vocabulary",
                got="neither",
                do="start from a model that was trained to fill in masked tokens, such as a BERT",
            )
        count = tokenizer.vocabulary
        if tokenizer.num_embeddings is not None:
            count = min(count, tokenizer.num_embeddings)
        usable = np.setdiff1d(np.arange(count), tokenizer.special_ids)
        return cls(share, tokenizer.mask_id, usable)

    def choose(
        self, ids: Int[np.ndarray, "rows length"], generator: np.random.Generator
    ) -> Bool[np.ndarray, "rows length"]:
        """Choose tokens of each row: the share of its usable tokens, rounded, and at least one if there is one."""
        is_usable = np.isin(ids, self.usable)
        counts = is_usable.sum(axis=1)
        counts_of_masks = np.minimum(np.maximum(np.rint(self.share * counts), 1), counts)
        keys = np.where(is_usable, generator.random(ids.shape), 2.0)
        ranks = keys.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        return ranks < counts_of_masks[:, None]

    def replace(
        self,
        ids: Int[np.ndarray, "rows length"],
        chosen: Bool[np.ndarray, "rows length"],
        generator: np.random.Generator,
    ) -> Int[np.ndarray, "rows length"]:
        """Replace chosen tokens by [MASK] or by another token, or keep them, at random."""
        draw = generator.random(ids.shape)
        others = self.usable[generator.integers(0, len(self.usable), size=ids.shape)]
        found = np.where(chosen & (draw < _MASKED), self.mask_id, ids)
        return np.where(chosen & (draw >= _MASKED) & (draw < _MASKED + _RANDOM), others, found)


def check_share(share: object) -> None:
    """Raise OptionError unless ``share`` is above 0 and at most 1."""
    check_number("`mask_share`", share, above=0.0, maximum=1.0)

"""The loss of predicting tokens by their frequencies alone, which a language model beats once it reads the text.

    loss = -mean over held-out tokens t of ln((n_t + 1) / (N + V))    n_t of N training tokens are t; V tokens in all

Laplace's rule of succession: a token that the training texts lack has a probability, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from regard.tasks.sentences import Sentences


def frequency_loss(training: npt.NDArray[np.integer], held_out: npt.NDArray[np.integer], vocab_size: int) -> float:
    """The mean loss of the token ids ``held_out``, in nats, by their frequencies in ``training``."""
    counts = np.bincount(training.astype(np.int64), minlength=vocab_size) + 1
    return float(-np.log(counts[held_out.astype(np.int64)] / counts.sum()).mean())


def without_first(sentences: Sentences) -> npt.NDArray[np.integer]:
    """The ids of all tokens that have a token before them in their sentence: those that a model predicts."""
    is_first = np.zeros(len(sentences.ids) + 1, dtype=bool)
    is_first[sentences.offsets[:-1]] = True
    return sentences.ids[~is_first[:-1]]

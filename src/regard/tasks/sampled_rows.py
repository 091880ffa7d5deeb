"""Rows of the validation data that a validation shows: others at each step, the same ones when a run is repeated."""

from __future__ import annotations

import torch


def sample_rows(rows: int, count: int) -> list[int]:
    """Draw ``count`` of ``rows`` without replacement, in ascending order; all of them if there are fewer.

    They come from torch's random number generator, which the training loop seeds for each validation
    (``regard.train.Task.validate``).
    """
    return sorted(torch.randperm(rows)[:count].tolist())

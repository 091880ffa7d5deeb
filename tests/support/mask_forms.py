"""Masks of any size in each form that kernels accept: none, bands, intervals, cells, tiles."""

import numpy as np
import torch
from torch import Tensor

from regard import masks

BATCH = 2


def random_cells(queries: int, keys: int) -> Tensor:
    """Random bools (BATCH, 1, queries, keys), True for 3 in 10."""
    return torch.from_numpy(np.random.default_rng([queries, keys]).random((BATCH, 1, queries, keys)) < 0.3)


MASKS = {
    "none": lambda queries, keys: None,
    "causal": lambda queries, keys: masks.causal(),
    "window": lambda queries, keys: masks.window(3, 1),
    "padding": lambda queries, keys: masks.padding([keys, keys // 3]),
    "cells": lambda queries, keys: masks.keep(random_cells(queries, keys)),
    "tiles": lambda queries, keys: masks.window(2, 2) | masks.global_tokens([0]),
}

"""Initial embeddings of the bins of continuous values: near bins have near vectors.

    e_b = s sqrt(2) (sin(f_1 c_b) .. sin(f_n c_b), cos(f_1 c_b) .. cos(f_n c_b)),    c_b the centre of bin b in [-1, 1]
    f_k = pi / 2 * 64^((k - 1) / (n - 1)),    n = width / 2

s is the standard deviation of the other embeddings. Reed et al. 2022 draw all of them at random, so that a model has to
learn from its data alone which of 1,024 bins are near each other; that takes far more data than a small model gets.
The frequencies are those of a position encoding: Vaswani et al. 2017, section 3.5, and Mildenhall et al. 2020,
"NeRF", equation 4.
"""

from __future__ import annotations

import math

import torch

from regard.models import Gato

_HIGHEST = 64.0


@torch.no_grad()
def order_bins(model: Gato) -> None:
    """Replace the embeddings of bins by ordered ones."""
    config, table = model.config, model.embedding.table.weight
    count = config.width // 2
    centres = (2.0 * torch.arange(config.bins, dtype=torch.float64) + 1.0) / config.bins - 1.0
    frequencies = math.pi / 2 * _HIGHEST ** torch.linspace(0.0, 1.0, count, dtype=torch.float64)
    angles = centres[:, None] * frequencies
    vectors = config.deviation * math.sqrt(2.0) * torch.cat([angles.sin(), angles.cos()], dim=1)
    ids = config.ranges.continuous_ids
    table[ids.start : ids.stop, : 2 * count] = vectors.to(table.dtype)

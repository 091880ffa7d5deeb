"""Random inputs of the scan family."""

import torch
from torch import Tensor

from regard.kernels.results import accumulation_dtype

BATCH, HEADS = 2, 3
VARIANTS = {
    "linear": (None, False),
    "decay": (1, False),
    "decay of channels": (0, False),
    "delta": (None, True),
    "gated delta": (1, True),
    "delta of channels": (0, True),
}
"""Channels of log_decay (0 is head_dim) and whether there is a beta."""

Inputs = dict[str, Tensor | None]


def make_inputs(variant, length=131, head_dim=19, value_dim=37, dtype=torch.float64, *, batch=BATCH, heads=HEADS):
    """Random inputs as the operator takes them, in the memory layout of layers (batch, length, heads, size)."""
    generator = torch.Generator().manual_seed(2020)
    channels, delta = VARIANTS[variant]

    def random(size):
        return torch.randn(batch, length, heads, size, generator=generator, dtype=torch.float64).transpose(1, 2)

    query, key, value = random(head_dim), random(head_dim), random(value_dim)
    if delta:
        key = key / key.norm(dim=-1, keepdim=True)
    log_decay = None if channels is None else -torch.nn.functional.softplus(2 * random(channels or head_dim))
    beta = random(1).sigmoid() if delta else None
    state = torch.randn(batch, heads, head_dim, value_dim, generator=generator, dtype=torch.float64)
    wide = accumulation_dtype(dtype)
    return {
        "query": query.to(dtype),
        "key": key.to(dtype),
        "value": value.to(dtype),
        "log_decay": None if log_decay is None else log_decay.to(wide),
        "beta": None if beta is None else beta.to(dtype),
        "state": state.to(wide),
    }

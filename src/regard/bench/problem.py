"""The tokens of a synthetic case, and the call that is measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from regard.bench.settings import BenchSettings
from regard.devices import wait_for
from regard.kernels.request import Request, Terms
from regard.masks import Mask
from regard.mechanisms import Mechanism

Tokens: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Query, key and value, each (batch, heads, length, head_dim)."""

DISTRIBUTION = (
    "Queries, keys and values are independent standard normal numbers, so scores have a standard deviation of 1 and "
    "exact weights are spread over nearly all keys. Errors on trained models differ: regard bench --data "
    "measures them."
)
"""The distribution of synthetic tokens, for reports."""


def make_tokens(settings: BenchSettings, length: int) -> Tokens:
    """Draw query, key and value from a standard normal distribution."""
    shape = (settings.batch, settings.heads, length, settings.head_dim)
    generator = torch.Generator().manual_seed(settings.seed)
    query, key, value = (
        torch.randn(shape, generator=generator).to(device=settings.device, dtype=settings.torch_dtype) for _ in range(3)
    )
    return query, key, value


def refusal_reason(mechanism: Mechanism, settings: BenchSettings, length: int) -> str | None:
    """Return why the mechanism refuses the case, without memory for tokens; None if it does not."""
    shape = (settings.batch, settings.heads, length, settings.head_dim)
    tokens = torch.empty(shape, device="meta", dtype=settings.torch_dtype)
    return mechanism.refuses(Request(tokens, tokens, tokens, Terms(settings.mask, scale=mechanism.scale)))


def make_call(mechanism: Mechanism, tokens: Tokens, mask: Mask | None, *, backward: bool) -> Callable[[], object]:
    """Make the call to measure: the output, and with ``backward`` the gradients. On a GPU it waits for the result."""
    query, key, value = tokens
    wait = partial(wait_for, query.device)
    if not backward:

        def compute_output() -> None:
            with torch.no_grad():
                mechanism(query, key, value, mask)
            wait()

        return compute_output

    inputs = [token.detach().requires_grad_() for token in tokens]
    leaves = [*inputs, *(parameter for parameter in mechanism.parameters() if parameter.requires_grad)]

    def compute_gradients() -> None:
        output = mechanism(*inputs, mask)
        torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)
        wait()

    return compute_gradients

"""A layer as a contestant whose results are compared with some rows, computed in float64 from the layer's equation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.accuracy import TOLERANCES, Deviation, choose_rows, deviation
from benchmarks.case import Contestant

RowsInFloat64 = Callable[[Tensor, Tensor], Tensor]
"""Maps tokens (batch, length, width) in float64 and the indices of rows to these rows of the output."""


def layer_contestant(
    module: nn.Module,
    compute_rows: RowsInFloat64,
    tokens: Tensor,
    upstream: Tensor,
    weights: Sequence[Tensor],
    *,
    training: bool,
) -> Contestant:
    """Time a layer; in training with the gradients of the tokens and of ``weights``."""

    def forward() -> Tensor:
        with torch.no_grad():
            result: Tensor = module(tokens)
            return result

    def train() -> tuple[Tensor, ...]:
        leaf = tokens.detach().requires_grad_()
        return torch.autograd.grad(module(leaf), [leaf, *weights], upstream)

    compare = partial(_deviations, module, compute_rows, tokens, upstream, training=training)
    return Contestant(train if training else forward, compare)


def _deviations(
    module: nn.Module, compute_rows: RowsInFloat64, tokens: Tensor, upstream: Tensor, *, training: bool
) -> Iterable[Deviation]:
    """Compare some rows, and the gradient of the tokens if only these rows have one."""
    rows, allowed = choose_rows(tokens.shape[1]), TOLERANCES[torch.float32]
    exact, found = tokens.double().requires_grad_(), tokens.detach().requires_grad_()
    expected, output = compute_rows(exact, rows), module(found)
    yield deviation("output", output[:, rows].detach(), expected.detach(), allowed)
    if training:
        sparse = torch.zeros_like(upstream).index_copy(1, rows, upstream[:, rows])
        (wanted,) = torch.autograd.grad(expected, exact, upstream[:, rows].double())
        (got,) = torch.autograd.grad(output, found, sparse)
        yield deviation("gradient of the tokens", got, wanted, allowed)

"""regard::dropout, the native kernel as a torch operator.

    y_i = m_i x_i / (1 - p),    m_i = 0 with probability p, else 1        Srivastava et al. 2014, "Dropout", section 10

m is a function of the seed and the index i, counted along rows, so that it is the same for any number of threads, in
every instruction set and in every layout, and the backward pass draws it again instead of storing it. Where m_i is 0,
y_i and the gradient of x_i are 0, even if x_i, or the gradient of y_i, is NaN or infinite.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from regard.kernels.extension import native
from regard.kernels.operators.operator import Operator
from regard.kernels.support import unsupported_reason

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_NUM_SEEDS = 2**63 - 1


def drop(tokens: Tensor, probability: float) -> Tensor:
    """Apply dropout with probability 0 <= p < 1; the seed is drawn from the generator that ``torch.manual_seed`` seeds.

    The native kernel computes it if it supports the tokens: on a CPU, in a floating dtype of the kernels, not a
    subclass of Tensor, and not under torch.func. Otherwise torch does, with other random numbers for the same seed.
    """
    plain = tokens.dtype in _DTYPES and type(tokens) in (Tensor, Parameter)
    if not plain or unsupported_reason(tokens) is not None:
        return functional.dropout(tokens, probability, training=True)
    seed = torch.randint(_NUM_SEEDS, (), device="cpu")
    return DROPOUT.call((tokens,), tokens, probability, seed)


def _dropout(tokens: Tensor, probability: float, seed: Tensor) -> Tensor:
    """Compute regard::dropout on a CPU."""
    output = torch.empty_like(tokens, memory_format=torch.contiguous_format)
    if tokens.numel() > 0:
        flat = tokens.contiguous().view(-1)
        threads = torch.get_num_threads()
        native.dropout(flat, output.view(-1), probability=probability, seed=int(seed), threads=threads)
    return output


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save the probability and the seed, from which the mask is drawn again."""
    del output
    _, ctx.probability, seed = inputs
    ctx.save_for_backward(seed)


def _differentiate(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """Apply the same mask to the gradient; the result is differentiable again."""
    (gradient,), (seed,) = gradients, ctx.saved_tensors
    return DROPOUT.call_backward((gradient,), gradient, ctx.probability, seed), None, None


DROPOUT = Operator(
    "dropout",
    "(Tensor input, float probability, Tensor seed) -> Tensor",
    compute=_dropout,
    fake=lambda tokens, *_: torch.empty_like(tokens, memory_format=torch.contiguous_format),
    save=_save,
    differentiate=_differentiate,
    vmap=True,
)

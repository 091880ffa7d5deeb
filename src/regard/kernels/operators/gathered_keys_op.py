"""regard::gathered_keys and regard::gathered_keys_backward: exact attention to the keys at given positions.

    output_i = softmax(scale * q_i . k_j) value_j       over the keys j in positions_i

The kernels read the rows of the chosen keys where they are (``csrc/selection/gathered_keys.h``). The backward pass
computes the weights again, so nothing is kept between the passes. Positions are ascending, so dK and dV are added up by
ranges of keys, over the queries in order: no sum depends on the number of threads. There is no second derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative, save_for_backward
from regard.kernels.results import empty_like_tokens, empty_token_major


def gathered_keys(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    positions: Int32[Tensor, "batch position_heads queries count"],
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output, through the torch operator if torch is tracing, else by the kernel.

    ``positions`` are ascending and distinct, with -1 behind the last one; position_heads is 1, the number of key heads,
    or the number of heads. ``scale`` is above 0. ``seed`` is the seed of ``dropout``; None without dropout.
    """
    return GATHERED_KEYS.call((query, key, value, positions), query, key, value, positions, scale, dropout, seed)


def _options(scale: float, dropout: float, seed: Tensor | None) -> dict[str, Any]:
    options: dict[str, Any] = {"scale": scale, "threads": torch.get_num_threads()}
    return options if seed is None else options | {"dropout": dropout, "seed": int(seed)}


def _gathered_keys(query: Tensor, key: Tensor, value: Tensor, positions: Tensor, *numbers: Any) -> Tensor:
    """Compute regard::gathered_keys on a CPU."""
    output = empty_token_major(query, query.shape[2], value.shape[3])
    native.gathered_forward(query, key, value, positions, output, **_options(*numbers))
    return output


def _gathered_keys_backward(
    grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, positions: Tensor, *numbers: Any
) -> tuple[Tensor, ...]:
    """Compute regard::gathered_keys_backward on a CPU."""
    gradients = empty_like_tokens(query, key, value)
    native.gathered_backward(grad_output, query, key, value, positions, *gradients, **_options(*numbers))
    return gradients


def _differentiate(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients of query, key and value; there are no others."""
    if grad_output is None:
        return (None,) * 7
    _, inputs = load_saved(ctx)
    gradients = GATHERED_KEYS_BACKWARD.call_backward((grad_output, *inputs[:4]), grad_output, *inputs)
    return (*gradients, None, None, None, None)


_SCHEMA = "Tensor query, Tensor key, Tensor value, Tensor positions, float scale, float dropout, Tensor? seed"
GATHERED_KEYS_BACKWARD = Operator(
    "gathered_keys_backward",
    f"(Tensor grad_output, {_SCHEMA}) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    compute=_gathered_keys_backward,
    fake=lambda grad_output, query, key, value, *_: empty_like_tokens(query, key, value),
    differentiate=refuse_second_derivative,
    vmap=True,
)
GATHERED_KEYS = Operator(
    "gathered_keys",
    f"({_SCHEMA}) -> Tensor output",
    compute=_gathered_keys,
    fake=lambda query, key, value, *_: empty_token_major(query, query.shape[2], value.shape[3]),
    save=lambda ctx, inputs, output: save_for_backward(ctx, inputs, ()),
    differentiate=_differentiate,
)

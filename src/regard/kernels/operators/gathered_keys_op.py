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
from regard.kernels.operators.operator import Operator, refuse_second_derivative
from regard.kernels.results import empty_token_major
from regard.kernels.tracing import any_requires_grad, is_eager, is_eager_backward


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
    given = (query, key, value, positions, scale, dropout, seed)
    compute = GATHERED_KEYS.torch_op
    if is_eager(query, key, value, positions):
        compute = GATHERED_KEYS.compute
        if any_requires_grad(query, key, value):
            compute = GATHERED_KEYS.compute_with_grad
    return compute(*given)


def _options(scale: float, dropout: float, seed: Tensor | None) -> dict[str, Any]:
    options: dict[str, Any] = {"scale": scale, "threads": torch.get_num_threads()}
    return options if seed is None else options | {"dropout": dropout, "seed": int(seed)}


def _gathered_keys(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """Compute regard::gathered_keys on a CPU."""
    output = _empty_output(query, key, value, positions, scale, dropout, seed)
    native.gathered_forward(query, key, value, positions, output, **_options(scale, dropout, seed))
    return output


def _empty_output(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float, dropout: float, seed: Tensor | None
) -> Tensor:
    """Allocate the output; also the fake kernel for tracing."""
    del key, positions, scale, dropout, seed
    return empty_token_major(query, query.shape[2], value.shape[3])


def _gathered_keys_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, ...]:
    """Compute regard::gathered_keys_backward on a CPU."""
    gradients = _empty_gradients(grad_output, query, key, value, positions, scale, dropout, seed)
    options = _options(scale, dropout, seed)
    native.gathered_backward(grad_output, query, key, value, positions, *gradients, **options)
    return gradients


def _empty_gradients(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, ...]:
    """Allocate the gradients; also the fake kernel for tracing."""
    del grad_output, positions, scale, dropout, seed
    return tuple(empty_token_major(part, part.shape[2], part.shape[3]) for part in (query, key, value))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save the inputs; nothing else is needed."""
    del output
    ctx.set_materialize_grads(False)
    *tensors, ctx.scale, ctx.dropout, seed = inputs
    ctx.save_for_backward(*tensors, seed)


def _differentiate(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients of query, key and value; there are no others."""
    if grad_output is None:
        return (None,) * 7
    *tensors, seed = ctx.saved_tensors
    eager = is_eager_backward(grad_output, *tensors)
    backward = GATHERED_KEYS_BACKWARD.compute if eager else GATHERED_KEYS_BACKWARD.torch_op
    return (*backward(grad_output, *tensors, ctx.scale, ctx.dropout, seed), None, None, None, None)


_SCHEMA = "Tensor query, Tensor key, Tensor value, Tensor positions, float scale, float dropout, Tensor? seed"
GATHERED_KEYS_BACKWARD = Operator(
    "gathered_keys_backward",
    f"(Tensor grad_output, {_SCHEMA}) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    compute=_gathered_keys_backward,
    fake=_empty_gradients,
    differentiate=refuse_second_derivative,
    vmap=True,
)
GATHERED_KEYS = Operator(
    "gathered_keys",
    f"({_SCHEMA}) -> Tensor output",
    compute=_gathered_keys,
    fake=_empty_output,
    save=_save,
    differentiate=_differentiate,
)

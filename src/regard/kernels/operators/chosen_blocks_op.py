"""regard::chosen_blocks and regard::chosen_blocks_backward: causal attention to the own block and to chosen ones.

    output_i = softmax(scale * q_i . k_j) value_j       over j <= i in the own block of query i, and over the earlier
                                                        blocks that it chose

In the forward pass a kernel (``csrc/selection/chosen_blocks.cpp``) computes the parts of a query, its own block and
each chosen one, by tiles of queries that share a block, and adds them with weights from their normalizers (Milakov and
Gimelshein 2018, section 3.1). The backward pass (``csrc/selection/chosen_blocks_backward.cpp``) computes the same tiles
with the normalizer of the whole row, so nothing of a part is stored between the passes: memory is linear in length.
With dropout, ``operators.block_plan`` gathers the queries in both passes, and the tile kernels of exact attention
compute the parts, which drops the same weights. No sum depends on the number of threads. There is no second derivative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators import attention_op
from regard.kernels.operators.block_plan import BlockPlan
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative, save_for_backward
from regard.kernels.results import empty_like_tokens, empty_token_major

_LOG2_E = math.log2(math.e)
_MAX_BYTES = 16 << 20
"""Bytes of gathered queries at once, or one key head's: larger memory is returned to the system after each use."""


def chosen_blocks(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    chosen: Bool[Tensor, "batch heads queries blocks"],
    stop: Int[Tensor, " batch"] | None,
    block: int,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output, through the torch operator if torch is tracing, else by the kernels.

    ``chosen`` marks complete blocks before the query's own, which is always attended to. Keys from ``stop`` on are
    hidden. ``block`` is a multiple of 64, and ``scale`` is above 0. ``seed`` is the seed of ``dropout``; None without
    dropout.
    """
    tensors = (query, key, value, chosen)
    return CHOSEN_BLOCKS.call(tensors, *tensors, stop, block, scale, dropout, seed)[0]


def _chosen_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chosen: Tensor,
    stop: Tensor | None,
    block: int,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute regard::chosen_blocks on a CPU: the output and its normalizer."""
    output, normalizer = _empty_results(query, value)
    if seed is None:  # the kernel computes blocks apart, and would number the rows of dropout another way
        options: dict[str, Any] = {"block": block, "stop": stop, "scale": scale, "threads": torch.get_num_threads()}
        native.chosen_blocks_forward(query, key, value, chosen, output, normalizer, **options)
        return output, normalizer
    for of_queries, of_keys in _split_heads(query, key, value, chosen):
        plan = BlockPlan.of(chosen[:, of_queries], stop, block, query.shape[2], key.shape[2])
        terms = plan.kernel_arguments(scale)._replace(dropout=dropout, seed=seed)
        given = plan.gather(query[:, of_queries]), key[:, of_keys], value[:, of_keys]
        parts, _, normalizers, _ = attention_op.ATTENTION.compute(*given, *terms)
        shares, of_rows = _combine(plan.gather_parts(normalizers, missing=-torch.inf), scale)
        output[:, of_queries], normalizer[:, of_queries] = plan.add_parts(parts, shares), of_rows
    return output, normalizer


def _split_heads(query: Tensor, key: Tensor, value: Tensor, chosen: Tensor) -> Iterator[tuple[slice, slice]]:
    """Split query heads and their key heads, so that what is gathered for some is in memory that is reused."""
    batch, heads, queries, head_dim = query.shape
    key_heads = key.shape[1]
    rows = queries + int(chosen.sum()) / max(1, batch * heads)
    bytes_of_key_head = batch * heads / key_heads * rows * max(head_dim, value.shape[3]) * query.itemsize
    step, group = max(1, int(_MAX_BYTES / max(1.0, bytes_of_key_head))), heads // key_heads
    for first in range(0, key_heads, step):
        yield slice(first * group, (first + step) * group), slice(first, first + step)


def _combine(normalizers: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Compute the share of each part of a query, and the normalizer of the whole row, from the parts' normalizers.

    ``normalizers`` (batch, heads, queries, parts, 2) are the largest products and binary logarithms of the sums.
    """
    largest, log_sum = normalizers.unbind(-1)
    is_empty = log_sum == -torch.inf
    highest = largest.masked_fill(is_empty, -torch.inf).amax(-1, keepdim=True)
    highest = highest.masked_fill(highest == -torch.inf, 0.0)
    sums = torch.exp2((largest.masked_fill(is_empty, 0.0) - highest) * (scale * _LOG2_E) + log_sum)
    sums = sums.masked_fill(is_empty, 0.0)
    total = sums.sum(-1, keepdim=True)
    shares = (sums / total).masked_fill(total == 0, 0.0)
    return shares, torch.cat([highest, total.log2()], dim=-1)


def _empty_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the output and its normalizer."""
    output = empty_token_major(query, query.shape[2], value.shape[3])
    return output, query.new_empty((*query.shape[:3], 2))


def _chosen_blocks_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    normalizer: Tensor,
    chosen: Tensor,
    stop: Tensor | None,
    block: int,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, ...]:
    """Compute regard::chosen_blocks_backward on a CPU."""
    gradients = empty_like_tokens(query, key, value)
    if seed is None:
        options: dict[str, Any] = {"block": block, "stop": stop, "scale": scale, "threads": torch.get_num_threads()}
        native.chosen_blocks_backward(grad_output, query, key, value, chosen, output, normalizer, *gradients, **options)
        return gradients
    of_query, of_key, of_value = gradients
    for queries, keys in _split_heads(query, key, value, chosen):
        plan = BlockPlan.of(chosen[:, queries], stop, block, query.shape[2], key.shape[2])
        parts, of_key[:, keys], of_value[:, keys], _, _, _ = attention_op.ATTENTION_BACKWARD.compute(
            plan.gather(grad_output[:, queries]),
            None,
            plan.gather(query[:, queries]),
            key[:, keys],
            value[:, keys],
            plan.gather(output[:, queries]),
            plan.gather_normalizer(normalizer[:, queries]),
            output.new_empty(0),
            False,
            False,
            False,
            *plan.kernel_arguments(scale)._replace(dropout=dropout, seed=seed),
        )
        of_query[:, queries] = plan.add_parts(parts, None)
    return gradients


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients of query, key and value; there are no others."""
    grad_output = gradients[0]
    if grad_output is None:
        return (None,) * 9
    (output, normalizer), (query, key, value, *others) = load_saved(ctx)
    tensors = (grad_output, query, key, value)
    return (*CHOSEN_BLOCKS_BACKWARD.call_backward(tensors, *tensors, output, normalizer, *others), *(None,) * 6)


_SCHEMA = "Tensor chosen, Tensor? stop, SymInt block, float scale, float dropout, Tensor? seed"
CHOSEN_BLOCKS_BACKWARD = Operator(
    "chosen_blocks_backward",
    f"(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor output, Tensor normalizer, {_SCHEMA}) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    compute=_chosen_blocks_backward,
    fake=lambda grad_output, query, key, value, *_: empty_like_tokens(query, key, value),
    differentiate=refuse_second_derivative,
    vmap=True,
)
CHOSEN_BLOCKS = Operator(
    "chosen_blocks",
    f"(Tensor query, Tensor key, Tensor value, {_SCHEMA}) -> (Tensor output, Tensor normalizer)",
    compute=_chosen_blocks,
    fake=lambda query, key, value, *_: _empty_results(query, value),
    save=save_for_backward,
    differentiate=_differentiate,
    non_differentiable=(1,),
)

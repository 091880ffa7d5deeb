"""regard::chosen_blocks and regard::chosen_blocks_backward: causal attention to the own block and to chosen ones.

    output_i = sum_j w_ij value_j,  w_i = softmax(scale * q_i . k_j)     over j <= i in the own block of query i, and over
                                                                         the earlier blocks that it chose

``operators.block_plan`` gathers the queries that chose a block, and the tile kernels of exact attention compute
them as tiles of queries. The parts of a query, its own block and each chosen one, are then added with weights from
their normalizers (Milakov and Gimelshein 2018, section 3.1). The backward pass runs the same tiles with the normalizer
of the whole row, so nothing of a part is stored between the passes: memory is linear in length. No sum depends on the
number of threads. There is no second derivative.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.operators import attention_op
from regard.kernels.operators.block_plan import BlockPlan
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative, save_for_backward
from regard.kernels.results import empty_token_major
from regard.kernels.tracing import any_requires_grad, is_eager, is_eager_backward

_LOG2_E = math.log2(math.e)


def chosen_blocks(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    chosen: Bool[Tensor, "batch heads queries blocks"],
    stop: Int[Tensor, " batch"] | None,
    block: int,
    scale: float,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output, through the torch operator if torch is tracing, else by the kernels.

    ``chosen`` marks complete blocks before the query's own, which is always attended to. Keys from ``stop`` on are
    hidden. ``block`` is a multiple of 64, and ``scale`` is above 0.
    """
    given = (query, key, value, chosen, stop, block, scale)
    if not is_eager(query, key, value, chosen):
        return cast(Tensor, CHOSEN_BLOCKS.torch_op(*given)[0])
    compute = CHOSEN_BLOCKS.compute_with_grad if any_requires_grad(query, key, value) else CHOSEN_BLOCKS.compute
    return cast(Tensor, compute(*given)[0])


def _chosen_blocks(
    query: Tensor, key: Tensor, value: Tensor, chosen: Tensor, stop: Tensor | None, block: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute regard::chosen_blocks on a CPU: the output and its normalizer."""
    plan = BlockPlan.of(chosen, stop, block, query.shape[2], key.shape[2])
    parts = attention_op.ATTENTION.compute(plan.gather(query), key, value, *plan.kernel_arguments(scale))
    of_parts, normalizers = parts[0], parts[2]
    shares, normalizer = _combine(plan.gather_parts(normalizers, missing=-torch.inf), scale)
    return plan.add_parts(of_parts, shares), normalizer


def _combine(normalizers: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Compute the share of each part of a query, and the normalizer of the whole row, from those of the parts.

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


def _empty_results(
    query: Tensor, key: Tensor, value: Tensor, chosen: Tensor, stop: Tensor | None, block: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Allocate the results; also the fake kernel for tracing."""
    del key, chosen, stop, block, scale
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute regard::chosen_blocks_backward on a CPU."""
    plan = BlockPlan.of(chosen, stop, block, query.shape[2], key.shape[2])
    rows, no_rounding = plan.gather_normalizer(normalizer), output.new_empty(0)
    of_parts, of_key, of_value, _, _ = attention_op.ATTENTION_BACKWARD.compute(
        plan.gather(grad_output),
        None,
        plan.gather(query),
        key,
        value,
        plan.gather(output),
        rows,
        no_rounding,
        False,
        False,
        *plan.kernel_arguments(scale),
    )
    return plan.add_parts(of_parts, None), of_key, of_value


def _empty_gradients(
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
) -> tuple[Tensor, ...]:
    """Allocate the gradients; also the fake kernel for tracing."""
    del grad_output, output, normalizer, chosen, stop, block, scale
    return tuple(empty_token_major(part, part.shape[2], part.shape[3]) for part in (query, key, value))


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients of query, key and value; there are no others."""
    grad_output = gradients[0]
    if grad_output is None:
        return (None,) * 7
    (output, normalizer), (query, key, value, *others) = load_saved(ctx)
    eager = is_eager_backward(grad_output, query, key, value)
    backward = CHOSEN_BLOCKS_BACKWARD.compute if eager else CHOSEN_BLOCKS_BACKWARD.torch_op
    return (*backward(grad_output, query, key, value, output, normalizer, *others), None, None, None, None)


_SCHEMA = "Tensor chosen, Tensor? stop, SymInt block, float scale"
CHOSEN_BLOCKS_BACKWARD = Operator(
    "chosen_blocks_backward",
    f"(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor output, Tensor normalizer, {_SCHEMA}) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    compute=_chosen_blocks_backward,
    fake=_empty_gradients,
    differentiate=refuse_second_derivative,
    vmap=True,
)
CHOSEN_BLOCKS = Operator(
    "chosen_blocks",
    f"(Tensor query, Tensor key, Tensor value, {_SCHEMA}) -> (Tensor output, Tensor normalizer)",
    compute=_chosen_blocks,
    fake=_empty_results,
    save=save_for_backward,
    differentiate=_differentiate,
    non_differentiable=(1,),
)

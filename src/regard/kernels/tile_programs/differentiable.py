"""The kernels of this folder as a function of torch with gradients: of the output and of each statistic.

The output is kept in float32 for the backward pass, also where it is returned in half precision: the error of a rounded
one is the same for all keys of a query, and would accumulate in training (Qiu and Yao 2025, section 3).
"""

from __future__ import annotations

from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from regard.errors import RefusedError
from regard.kernels.autograd_function import Function
from regard.kernels.tile_programs.gradients import Gradients, Saved, differentiate
from regard.kernels.tile_programs.kernel_arguments import Normalizer
from regard.kernels.tile_programs.launch import (
    Inputs,
    Output,
    make_problem,
    run_asked_rows,
    run_forward,
    run_received,
    run_row_statistics,
)

Columns: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""output, lse, entropy, received, top keys, top weights, largest score, sink weight, weights of the asked rows."""

_TOP_KEYS, _MAX_SCORE = 4, 6
_TENSORS = 6  # of ``Inputs``: query, key, value, bias, table, sinks


def compute(inputs: Inputs, top: int, rows: Tensor | None) -> Columns:
    """Compute the output and the statistics, without gradients."""
    columns, _ = _compute(inputs, top, rows, inputs.query.dtype)
    return columns


def compute_with_gradients(inputs: Inputs, top: int, rows: Tensor | None) -> Columns:
    """Compute the output and the statistics, differentiable with respect to the tensors of ``inputs``."""
    columns: Columns = _Observe.apply(top, rows, inputs[_TENSORS:], *inputs[:_TENSORS])
    return columns


def _compute(inputs: Inputs, top: int, rows: Tensor | None, dtype: torch.dtype) -> tuple[Columns, Output]:
    problem = make_problem(inputs)
    output = run_forward(problem, dtype)
    summary = run_row_statistics(problem, output, top=top)
    assert summary.entropy is not None
    columns = (
        output.output.to(inputs.query.dtype),
        output.lse,
        summary.entropy,
        run_received(problem, output.normalizer),
        summary.top_keys,
        summary.top_weights,
        output.max_score,
        output.sink_weight,
        None if rows is None else run_asked_rows(problem, output.normalizer, rows),
    )
    return columns, output


@final
class _Observe(Function):
    """All results of a call."""

    @staticmethod
    def forward(ctx: Any, top: int, rows: Tensor | None, others: tuple[Any, ...], *tensors: Tensor | None) -> Columns:
        """Compute the results, and save what the backward pass needs."""
        inputs: tuple[Any, ...] = (*tensors, *others)
        columns, output = _compute(Inputs(*inputs), top, rows, torch.float32)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(columns[_TOP_KEYS], columns[_MAX_SCORE])
        ctx.others = others
        of_rows = (rows, columns[8])
        ctx.save_for_backward(
            *tensors, output.output, columns[1], columns[2], *output.normalizer, *columns[4:6], columns[7], *of_rows
        )
        return columns

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Compute the gradient of each tensor. There are no second derivatives."""
        if torch.is_grad_enabled():
            raise RefusedError(
                'impl "triton" has no second derivatives',
                expected="one backward pass through each call",
                got="a backward pass that is to be differentiated again (create_graph=True)",
                do='use impl="reference"',
            )
        if all(gradient is None for gradient in gradients):
            return (None,) * (3 + _TENSORS)
        saved = ctx.saved_tensors
        problem = make_problem(Inputs(*saved[:_TENSORS], *ctx.others))
        whole, lse, entropy, largest, log_sum, top_keys, top_weights, sink_weight, *of_rows = saved[_TENSORS:]
        output = Output(whole, lse, lse, Normalizer(largest, log_sum), sink_weight)
        of_output, of_lse, of_entropy, of_received, _, of_top, _, of_sink, of_weights = gradients
        results = differentiate(
            problem,
            Saved(output, entropy, top_keys, top_weights, *of_rows),
            Gradients(of_output, of_lse, of_entropy, of_received, of_top, of_sink, of_weights),
            ctx.needs_input_grad[3:],
        )
        return (None, None, None, *results)

"""``regard.observe`` by the kernels of this folder: a call's tensors in, an ``Observation`` out."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.contract import Observation
from regard.kernels.request import Request
from regard.kernels.tile_programs.differentiable import compute, compute_with_gradients
from regard.kernels.tile_programs.launch import Inputs, table_shift
from regard.kernels.tracing import any_requires_grad
from regard.positions.base import DistanceBias, distance_range


def observe(request: Request, top: int, rows: Tensor | None) -> Observation:
    """Compute attention, its statistics and the weights of ``rows``."""
    scaled = request.with_rebalanced_scale
    inputs = make_inputs(scaled)
    tensors = (inputs.query, inputs.key, inputs.value, inputs.bias, inputs.table, inputs.sinks)
    columns = (compute_with_gradients if any_requires_grad(*tensors) else compute)(inputs, top, rows)
    output, lse, entropy, received, top_keys, top_weights, max_score, sink_weight, rows_weights = columns
    return Observation(
        output.to(request.query.dtype),
        lse,
        entropy,
        received,
        top_keys,
        top_weights,
        rows=rows_weights,
        sink_weight=sink_weight,
        max_score=max_score,
    )


def make_inputs(request: Request) -> Inputs:
    """Convert a request: a mask to tiles on the device, a bias by distance to its table."""
    frame, terms, bias = request.frame, request.terms, request.bias
    table, shift = None, 0
    if isinstance(bias, DistanceBias):
        lowest, highest = distance_range(frame)
        table = bias.table(lowest, highest).to(request.device, torch.float32).contiguous()
        bias, shift = None, table_shift(frame, lowest)
    assert bias is None or isinstance(bias, Tensor), f"{bias} should have been refused"
    tiles = None if terms.mask is None else terms.mask.lower_to_device(frame, request.device)
    return Inputs(
        request.query, request.key, request.value, bias, table, terms.sinks, tiles, shift, terms.scale, terms.softcap
    )

"""Weights of any mechanism that is linear in its values, and statistics of them, in memory linear in length.

    o_i = sum_j w_ij v_j      so      w_ij = d o_i / d v_j,      whatever computes o

Row i needs one backward pass, which many rows can share: give the values one channel per requested row and sum channel
c of the output at query row_c over all c; the gradient of that sum with respect to the values has row_c in channel c.
So the exact weights of r queries cost a forward and a backward pass with value_dim = r, even if a mechanism never forms
them: linear attention, Linformer, features, landmarks, hashing, recurrent states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.contract import Observation
from regard.kernels.request import Request
from regard.kernels.tracing import in_functorch

Attend: TypeAlias = Callable[[Request], Tensor]
"""Computes the output (batch, heads, queries, value_dim) of a request."""
RowWeights: TypeAlias = Callable[[Request, Tensor], Tensor]
"""Computes the weights (batch, heads, rows, keys) of a request and indices of queries (rows)."""

_ROWS_PER_PASS = 64
"""Rows that share a backward pass: a value_dim that every mechanism and kernel supports."""


def weights_by_gradient(
    attend: Attend, request: Request, rows: Int[Tensor, " rows"]
) -> Float[Tensor, "batch heads rows keys"]:
    """Compute the weights of the queries ``rows``, without dropout; in float32 for half precision.

    If the output of a query is NaN, its weights are NaN for the keys that it may attend to. Differentiable with
    respect to query, key and parameters if the mechanism's own backward pass is.
    """
    batch, heads, _, _ = request.query.shape
    dtype = torch.float64 if request.query.dtype == torch.float64 else torch.float32
    request = request.replace(key=request.repeated_key, dropout=0.0)
    if not rows.shape[0]:
        return request.query.new_zeros((batch, heads, 0, request.frame.keys), dtype=dtype)
    parts = [_differentiate_rows(attend, request, some, dtype) for some in rows.split(_ROWS_PER_PASS)]
    return torch.cat(parts, dim=2)


def _differentiate_rows(
    attend: Attend, request: Request, rows: Int[Tensor, " rows"], dtype: torch.dtype
) -> Float[Tensor, "batch heads rows keys"]:
    """Compute the weights of up to ``_ROWS_PER_PASS`` queries by one backward pass."""
    batch, heads, keys, _ = request.key.shape
    differentiable = torch.is_grad_enabled()
    query, key = request.query.to(dtype), request.key.to(dtype)
    inputs = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in request.inputs.items()
    }

    def asked_outputs(value: Tensor) -> Tensor:
        """Channel c of the output at the c-th row."""
        output = attend(request.replace(query=query, key=key, value=value, inputs=inputs))
        return output[:, :, rows, torch.arange(rows.shape[0], device=rows.device)]

    if in_functorch():  # where autograd cannot be called, but transforms can be nested
        value = torch.zeros(batch, heads, keys, rows.shape[0], dtype=dtype, device=request.device)
        outputs, pull_back = torch.func.vjp(asked_outputs, value)[:2]
        return _mark_nan_rows(pull_back(torch.ones_like(outputs))[0], outputs, request, rows)
    if not differentiable:
        query, key = query.detach(), key.detach()
        inputs = {name: tensor.detach() for name, tensor in inputs.items()}
    with torch.inference_mode(False), torch.enable_grad():
        if query.is_inference() or key.is_inference():  # autograd cannot save inference tensors
            query, key = query.clone(), key.clone()
            inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        rows = rows.clone() if rows.is_inference() else rows
        value = torch.zeros(batch, heads, keys, rows.shape[0], dtype=dtype, device=request.device, requires_grad=True)
        outputs = asked_outputs(value)
        (gradient,) = torch.autograd.grad(outputs.sum(), value, create_graph=differentiable, materialize_grads=True)
        if gradient.requires_grad and not _has_other_leaf(gradient, value):
            gradient = gradient.detach()
    return _mark_nan_rows(gradient, outputs.detach(), request, rows)


def _has_other_leaf(result: Tensor, own: Tensor) -> bool:
    """Whether a result depends on a tensor with a gradient beside ``own``."""
    waiting, visited = [result.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf is not own:
            return True
        waiting += [following for following, _ in node.next_functions]
    return False


def _mark_nan_rows(
    gradient: Float[Tensor, "batch heads keys rows"],
    outputs: Float[Tensor, "batch heads rows"],
    request: Request,
    rows: Int[Tensor, " rows"],
) -> Float[Tensor, "batch heads rows keys"]:
    """The gradients as rows of weights: NaN for the visible keys of a row whose output is NaN."""
    allowed = _dense_mask_rows(request, rows)
    broken = outputs.isnan()[..., None]
    return gradient.transpose(2, 3).masked_fill(broken if allowed is None else broken & allowed, torch.nan)


def observe_by_weights(
    attend: Attend,
    row_weights: RowWeights,
    request: Request,
    *,
    top: int,
    rows: Int[Tensor, " rows"] | None,
    entropy: bool,
) -> Observation:
    """Compute the output and statistics, from the weights of a few queries at a time.

    ``entropy`` says whether to report it, which needs weights that are a distribution. Top weights are those with the
    largest absolute value.
    """
    batch, heads, _, _ = request.query.shape
    keys, received, parts = request.frame.keys, None, []
    for some in request.frame.all_rows(request.device).split(_ROWS_PER_PASS):
        weights = row_weights(request, some)
        total = weights.sum(2)
        received = total if received is None else received + total
        parts.append((_entropy(weights), *_top_weights(weights, _dense_mask_rows(request, some), top)))
    if received is None:
        like = request.query.new_zeros(batch, heads, 0, keys)
        received, parts = like.sum(2), [(_entropy(like), *_top_weights(like, None, top))]
    entropies, top_keys, top_weights = (torch.cat(column, dim=2) for column in zip(*parts, strict=True))
    return Observation(
        output=attend(request),
        lse=None,
        entropy=entropies if entropy else None,
        received=received,
        top_keys=top_keys,
        top_weights=top_weights,
        rows=None if rows is None else row_weights(request, rows),
    )


def _dense_mask_rows(request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "#batch #heads #rows #keys"] | None:
    """Make the dense mask of some queries; None if there is no mask."""
    if request.mask is None:
        return None
    return request.mask.dense(request.frame.queries, request.frame.keys, device=request.device, rows=rows)


def _entropy(weights: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows"]:
    """Compute -sum_j w_ij ln w_ij in nats. A weight of 0 adds 0; filling 1 under ln keeps its gradient finite."""
    return (weights * -weights.masked_fill(weights <= 0, 1.0).log()).sum(-1)


def _top_weights(
    weights: Float[Tensor, "batch heads rows keys"],
    allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None,
    top: int,
) -> tuple[Int[Tensor, "batch heads rows top"], Float[Tensor, "batch heads rows top"]]:
    """Find the keys of the largest weights, and the weights; -1 and 0 if there are no more, -1 and NaN in a NaN row."""
    broken = weights.isnan().any(-1, keepdim=True)
    hidden = broken if allowed is None else broken | ~allowed
    sizes = weights.detach().abs().masked_fill(hidden, -1.0)
    best, keys = sizes.topk(min(top, weights.shape[-1]), dim=-1)
    values = weights.gather(-1, keys).masked_fill(best < 0, 0.0).masked_fill(broken, torch.nan)
    missing = (0, top - keys.shape[-1])
    padded = torch.nn.functional.pad
    return padded(keys.masked_fill(best < 0, -1), missing, value=-1), padded(values, missing, value=0.0)

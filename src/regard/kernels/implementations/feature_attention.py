"""Attention by features, by the kernel: features of 64 tokens at a time, which are used and forgotten.

``reference.feature_attention`` has the request. For gradients, features are computed again. Second derivatives are in
plain torch where every query sees all keys, and refused where it sees those up to its own, as by the scan kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.operator import Operator, refuse_second_derivative
from regard.kernels.reference.feature_attention import FeatureRequest, attend_to_features
from regard.kernels.results import accumulation_dtype, empty_like_tokens, empty_token_major
from regard.kernels.support import unsupported_reason
from regard.kernels.tracing import any_requires_grad, is_eager

_MAX_DIM, _MAX_FEATURES = 1024, 4096


def refuses_features(request: FeatureRequest) -> str | None:
    """Return why the kernel does not compute a request; None if it does."""
    sizes = (*request.query.shape, *request.value.shape)
    if 0 in sizes:
        return "native takes at least one query and key"
    features = request.query.shape[3] if request.projection is None else request.projection.shape[0]
    if max(request.query.shape[3], request.value.shape[3]) > _MAX_DIM or features > _MAX_FEATURES:
        return f"native takes a head_dim and value_dim of at most {_MAX_DIM} and {_MAX_FEATURES:,} features"
    if any_requires_grad(request.projection):
        return "native has no gradients of the projection"
    if request.causal and any_requires_grad(*request.tensors) and request.query.shape[1] != request.key.shape[1]:
        return "native has gradients of a causal call only with a key head for each query head"
    return unsupported_reason(*(tensor for tensor in request.tensors if tensor is not None))


def attend_by_features(request: FeatureRequest) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute a request that is not refused, and the sums over its keys, which have no gradients.

    Returns the output; sums (batch, sum_heads, features, value_dim + 1), the last column of weights, divided by the
    exponential of log_scale (batch, sum_heads); and flags (batch, sum_heads, 2): whether a visible key is not finite,
    and whether any is visible. sum_heads is key_heads unless causal, or hidden keys differ between heads.
    """
    return FEATURES.call(request.tensors, *request)


def _compute(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute regard::feature_attention on a CPU."""
    request, results = FeatureRequest(*inputs), _empty_results(*inputs)
    native.feature_attention(*request[:5], *results, **request.numbers, threads=torch.get_num_threads())
    return results


def _empty_results(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate the results; also the fake kernel for tracing."""
    request = FeatureRequest(*inputs)
    query, value, batch = request.query, request.value, request.query.shape[0]
    by_head = request.causal or (request.hidden is not None and request.hidden.shape[1] > 1)
    heads = query.shape[1] if by_head else request.key.shape[1]
    features = query.shape[3] if request.projection is None else request.projection.shape[0]
    dtype = accumulation_dtype(query.dtype)
    return (
        empty_token_major(query, query.shape[2], value.shape[3]),
        query.new_empty(batch, heads, features, value.shape[3] + 1, dtype=dtype),
        query.new_empty(batch, heads, dtype=dtype),
        query.new_empty(batch, heads, 2, dtype=torch.bool),
    )


def _compute_gradients(
    grad_output: Tensor, sums: Tensor, log_scale: Tensor, flags: Tensor, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute regard::feature_attention_backward on a CPU."""
    request = FeatureRequest(*inputs)
    gradients = _empty_gradients(grad_output, sums, log_scale, flags, *inputs)
    results, options = (sums, log_scale, flags), {**request.numbers, "threads": torch.get_num_threads()}
    native.feature_attention_backward(grad_output, *results, *request[:5], *gradients, **options)
    return gradients


def _empty_gradients(
    grad_output: Tensor, sums: Tensor, log_scale: Tensor, flags: Tensor, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the gradients; also the fake kernel for tracing."""
    del grad_output, sums, log_scale, flags
    of_query, of_key, of_value = empty_like_tokens(*inputs[:3])
    return of_query, of_key, of_value


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save the tensors and the sums."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], *inputs[:5])
    ctx.numbers = inputs[5:]


def _differentiate(ctx: Any, grad_output: Tensor | None, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients of query, key and value."""
    del unused
    if grad_output is None:
        return (None,) * 10
    saved = ctx.saved_tensors
    sums, inputs = saved[:3], (*saved[3:], *ctx.numbers)
    request = FeatureRequest(*inputs)
    if torch.is_grad_enabled() and not request.causal and is_eager(grad_output, *saved):  # to be differentiated again
        return (*_differentiate_in_torch(grad_output, request), *(None,) * 7)
    tensors = (grad_output, *saved)
    return (*FEATURES_BACKWARD.call_backward(tensors, grad_output, *sums, *inputs), *(None,) * 7)


def _differentiate_in_torch(grad_output: Tensor, request: FeatureRequest) -> tuple[Tensor | None, ...]:
    """Compute the gradients such that they have gradients."""
    tokens = request[:3]
    differentiated = [side for side in tokens if side.requires_grad]
    gradients = iter(torch.autograd.grad(attend_to_features(request), differentiated, grad_output, create_graph=True))
    return tuple(next(gradients) if side.requires_grad else None for side in tokens)


_SCHEMA = (
    "Tensor query, Tensor key, Tensor value, Tensor? projection, Tensor? hidden, str kind, float norm_factor, "
    "float floor, float largest_norm, bool causal"
)
FEATURES_BACKWARD = Operator(
    "feature_attention_backward",
    f"(Tensor grad_output, Tensor sums, Tensor log_scale, Tensor flags, {_SCHEMA}) -> (Tensor grad_query, "
    "Tensor grad_key, Tensor grad_value)",
    compute=_compute_gradients,
    fake=_empty_gradients,
    differentiate=refuse_second_derivative,
    vmap=True,
)
FEATURES = Operator(
    "feature_attention",
    f"({_SCHEMA}) -> (Tensor output, Tensor sums, Tensor log_scale, Tensor flags)",
    compute=_compute,
    fake=_empty_results,
    save=_save,
    differentiate=_differentiate,
    non_differentiable=(1, 2, 3),
)

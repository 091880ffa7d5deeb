"""Conversion of layers recorded by ``regard.record`` for the views: by the steps of the mechanism, or weights alone.

The views can show the steps of ``mechanisms.steps``, with a bias that depends only on the distance of the two tokens.
For any other layer they show exact weights, computed by the mechanism itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import DataError, RefusedError, ShapeError, check_kind
from regard.kernels.request import Request
from regard.masks import Mask
from regard.mechanisms.steps import Branches, Factors, MixedHeads, States, Steps
from regard.positions.base import DistanceTerms, PairBias
from regard.recording import LayerCall
from regard.recording.recorded_call import join_kept_weights
from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading, RelativeVectors
from regard.view.layer_weights import LayerWeights

MAX_WEIGHTS = 2**25
"""Maximum number of weights in all layers of a recording that are stored as weights alone: 128 MiB."""

UNSUPPORTED_BIAS = "This layer adds a bias that does not depend on distance alone."
UNSUPPORTED_SCORE = "This layer adds vectors by distance to a score other than the dot product of its query."


@explain_arguments
def layers_of(recording: Iterable[LayerCall]) -> tuple[AttentionLayer, ...]:
    """Convert each recorded layer of a batch of one; the calls of a layer that was called step by step are joined.

    Raises ShapeError for a larger batch, RefusedError for calls that cannot be joined, DataError for numbers that
    are not finite, and for more than ``MAX_WEIGHTS`` in layers that are stored as weights alone.
    """
    check_kind("seen", recording, Iterable, do="with regard.record(model) as seen: model(ids)")
    calls: dict[str, list[LayerCall]] = {}
    for call in recording:
        check_kind("call", call, LayerCall, do="pass the recording of regard.record, or some of its calls")
        calls.setdefault(call.name, []).append(call)
    with torch.no_grad():
        joined = [_join_calls(same) for same in calls.values()]
        calls_with_steps = [(call, _steps_or_reason(call)) for call in joined]
        alone = [call for call, steps in calls_with_steps if isinstance(steps, str) or _has_pairs_per_head(call, steps)]
        check_number_of_weights([(call.query.shape[1], call.query.shape[2], call.key.shape[2]) for call in alone])
        return tuple(
            _to_layer_weights(call, steps) if isinstance(steps, str) else _to_layer_reading(call, steps)
            for call, steps in calls_with_steps
        )


def check_number_of_weights(sizes: Sequence[tuple[int, int, int]]) -> None:
    """Raise DataError if layers of these sizes (heads, queries, keys) have more than ``MAX_WEIGHTS`` weights."""
    if sum(map(math.prod, sizes)) > MAX_WEIGHTS:
        heads, queries, keys = sum(size[0] for size in sizes), *(max(size[axis] for size in sizes) for axis in (1, 2))
        raise DataError(
            "there are too many weights to show: without steps, a layer has one for each pair of tokens",
            expected=f"at most {MAX_WEIGHTS:,}",
            got=f"{heads:,} heads, up to {queries:,} x {keys:,} tokens",
            do=f"pass fewer tokens: up to {math.isqrt(MAX_WEIGHTS // heads):,} at a time",
        )


def to_float32(tensor: Tensor) -> Float32[Tensor, "..."]:
    """Copy the tensor to contiguous float32 on the CPU."""
    return tensor.detach().to("cpu", torch.float32).contiguous()


def _join_calls(calls: Sequence[LayerCall]) -> LayerCall:
    """Join calls with the same keys into one call with all their queries."""
    first = calls[0]
    if first.query.shape[0] != 1:
        raise ShapeError(
            f"the views show one text at a time, and {first.name or 'attention'} saw a batch",
            expected="a batch of 1",
            got=f"a batch of {first.query.shape[0]}",
            do="record the model with one text",
        )
    joined = replace(
        first,
        mechanism=join_kept_weights([call.mechanism for call in calls]) or first.mechanism,
        query=torch.cat([call.query for call in calls], dim=2),
        inputs=dict(first.inputs) | _join_query_inputs(calls),
    )
    if len(calls) > 1 and not _is_exact(joined, calls):
        raise RefusedError(
            f"the calls of {first.name or 'attention'} cannot be shown as one",
            expected="calls with the same keys, with masks and biases that do not depend on position",
            got=f"{len(calls)} calls",
            do="record a single call, with all the queries",
        )
    return joined


def _join_query_inputs(calls: Sequence[LayerCall]) -> dict[str, Tensor]:
    """Join the extra inputs that belong to queries."""
    parts = [call.inputs_of("query") for call in calls]
    return {name: torch.cat([part[name] for part in parts], dim=2) for name in parts[0]}


def _is_exact(joined: LayerCall, calls: Sequence[LayerCall]) -> bool:
    """Whether each query of a call has the same keys, mask and bias in the joined one."""
    return (
        joined.bias is None
        and all(_have_same_keys(call, joined) for call in calls)
        and all(_have_same_key_inputs(call, joined) for call in calls)
        and torch.equal(
            torch.cat([_dense_mask(call, call.mask) for call in calls], dim=1), _dense_mask(joined, joined.mask)
        )
    )


def _have_same_keys(call: LayerCall, joined: LayerCall) -> bool:
    """Whether keys and values are the same. Keys that are not known are NaN."""
    return torch.equal(call.key.nan_to_num(), joined.key.nan_to_num()) and torch.equal(call.value, joined.value)


def _have_same_key_inputs(call: LayerCall, joined: LayerCall) -> bool:
    """Whether the extra inputs of the keys are the same."""
    return all(torch.equal(tensor, joined.inputs[name]) for name, tensor in call.inputs_of("key").items())


def _steps_or_reason(call: LayerCall) -> Steps | str:
    """The steps of a layer, or one sentence why the views cannot show any."""
    request = _make_request(call)
    steps = call.mechanism.steps(request)
    if steps is None:
        return call.mechanism.traits.no_steps_reason
    terms = _distance_terms(call)
    if terms is None:
        return UNSUPPORTED_BIAS
    if terms.keys is not None and not _is_dot_product(steps, request):
        return UNSUPPORTED_SCORE
    return steps


def _is_band(call: LayerCall, mask: Mask | None) -> bool:
    """Whether a mask is a band, or none: the same for all heads and few numbers, whatever the length of a text."""
    return mask is None or mask.band(Frame(call.query.shape[2], call.key.shape[2])) is not None


def _has_pairs_per_head(call: LayerCall, steps: Steps) -> bool:
    """Whether the steps hold something for each pair of tokens and each head: a mask, or how often they meet."""
    per_head = steps.mask is not None and steps.mask.heads is not None and not _is_band(call, steps.mask)
    return per_head or steps.counts is not None


def _is_dot_product(steps: Steps, request: Request) -> bool:
    """Whether the score is the dot product of the unchanged query, with the scale of the request."""
    own = steps.query.shape == request.query.shape and bool((steps.query == request.query).all())
    return own and steps.vector is None and steps.softcap is None and steps.scale == request.terms.scale


def _to_layer_weights(call: LayerCall, reason: str) -> LayerWeights:
    """Convert a call without steps to its weights, and the factors, states or softmaxes of its mechanism."""
    weights = to_float32(call.weights()[0])
    request = _make_request(call)
    own = _factors_of(call, request, weights), _states_of(call, request, weights), _softmaxes_of(call, request, weights)
    return LayerWeights(call.name, weights, call.mechanism.weights_are, reason, *own)


def _make_request(call: LayerCall) -> Request:
    return call.mechanism.make_request(call.query, call.key, call.value, call.mask, call.bias, call.inputs)


def _factors_of(call: LayerCall, request: Request, weights: Float32[Tensor, "heads queries keys"]) -> Factors | None:
    """The factors of a call, if their products are its weights."""
    found = call.mechanism.weight_factors(request)
    if found is None:
        return None
    factors = replace(found, of_query=to_float32(found.of_query), of_key=to_float32(found.of_key))
    return factors if _are_equal(factors.weights(weights[None] != 0)[0], weights) else None


def _softmaxes_of(
    call: LayerCall, request: Request, weights: Float32[Tensor, "heads queries keys"]
) -> Branches | MixedHeads | None:
    """The softmaxes of a call, if their sum is its weights."""
    found = call.mechanism.softmaxes(request)
    if found is None:
        return None
    softmaxes = found.to_float32()
    return softmaxes if _are_equal(softmaxes.weights(weights.shape[2])[0], weights) else None


def _states_of(call: LayerCall, request: Request, weights: Float32[Tensor, "heads queries keys"]) -> States | None:
    """The updates of the state of a call, if they give its weights."""
    found = call.mechanism.states(request)
    if found is None:
        return None
    states = found.map_tensors(to_float32)
    return states if _are_equal(states.weights()[0], weights) else None


def _are_equal(computed: Tensor, weights: Tensor) -> bool:
    """Whether weights are those of the call, up to rounding."""
    return torch.allclose(computed, weights, rtol=1e-3, atol=1e-4)


def _to_layer_reading(call: LayerCall, steps: Steps) -> LayerReading:
    """Convert a call to the queries, keys and values of its steps."""
    value = call.value.repeat_interleave(steps.query.shape[1] // call.value.shape[1], dim=1)
    terms = _distance_terms(call) or DistanceTerms()
    table, keys, values = (None if term is None else to_float32(term) for term in terms)
    return LayerReading(
        name=call.name,
        steps=replace(
            steps.of_heads(slice(None), "cpu", torch.float32), mask=_simplify(call, steps.mask), buckets=steps.buckets
        ),
        value=to_float32(value[0]),
        bias=table,
        relative_vectors=None if keys is None else RelativeVectors(keys, values),
        call_mask=None if steps.hidden_by is None else _simplify(call, call.mask),
    )


def _simplify(call: LayerCall, mask: Mask | None) -> Mask | None:
    """A mask as a band or a tensor, with an axis of heads only if heads differ."""
    if mask is None or _is_band(call, mask):
        return mask
    allowed = _dense_mask(call, mask)
    return masks.keep((allowed[:1] if bool((allowed == allowed[:1]).all()) else allowed)[None])


def _distance_terms(call: LayerCall) -> DistanceTerms | None:
    """The terms of the bias of a call; None if it does not depend on distance alone."""
    if call.bias is None:
        return DistanceTerms()
    if not isinstance(call.bias, PairBias):
        return None
    sizes = call.query.shape[1], call.query.shape[2], call.key.shape[2]
    return call.bias.distance_terms(*sizes, call.mechanism.scale)


def _dense_mask(call: LayerCall, mask: Mask | None) -> Bool[Tensor, "heads_or_one queries keys"]:
    """Keys that each query may attend to, per head or for all heads."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    if mask is None:
        return torch.ones(1, queries, keys, dtype=torch.bool)
    return mask.dense(queries, keys).expand(1, -1, queries, keys)[0].cpu()

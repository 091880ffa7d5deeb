"""``observe``: the output and every statistic against the oracle, with tiles so small that each call has many.

In addition to the five promises: the statistics of observe are exact. Tolerances are those of promise 5 for sums in
float32 (float64 in float64); the statistics are never rounded to half precision. Equal weights may come in any order,
so the keys of the largest weights are checked by their weights.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from conformance.calls import build_mechanism, make_tensors
from conformance.check_refusal import is_refused
from conformance.claim_cases import ClaimCase, parametrize_cases
from conformance.claims import Claim
from conformance.mask_cases import Layout, expand_allowed
from conformance.test_agreement import to_numpy, tolerance
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.oracles import attention as oracle
from regard.kernels.reference import query_tiles

TOP, QUERY_ROWS = 4, (0, 3, -1)
_results: dict[tuple, Any] = {}


def compute_once(cache_key: tuple, compute: Callable[[], Any]) -> Any:
    """Compute an oracle's result once, for all implementations and dtypes of a mechanism."""
    if cache_key not in _results:
        _results[cache_key] = compute()
    return _results[cache_key]


def oracle_weights(claim: Claim, inputs, allowed, parameters, layout: Layout) -> np.ndarray:
    """Weights (batch, heads, queries, keys), from the oracle's output for one-hot values."""
    key_heads = layout.key_heads
    ones = np.broadcast_to(np.eye(layout.keys), (layout.batch, key_heads, layout.keys, layout.keys))
    return ORACLES[claim.mechanism].forward(inputs["query"], inputs["key"], ones, allowed, parameters)


def compute_entropy(weights: np.ndarray) -> np.ndarray:
    logarithms = np.log(np.where(weights > 0, weights, 1.0))
    return -(weights * logarithms).sum(-1)


@parametrize_cases("statistics")
def test_statistics_agree_with_the_oracle(case: ClaimCase, without_shape_checks, monkeypatch, record_proof) -> None:
    claim = case.claim
    for _, layout, mask_cases in case.groups:
        mechanism, tensors = build_mechanism(claim, layout), make_tensors(claim, layout)
        size = 8 if claim.dtype == "float64" else 4
        # three queries per tile, so that there are several tiles and the last one is partial
        monkeypatch.setattr(query_tiles, "_TILE_BYTES", 3 * layout.batch * layout.heads * layout.keys * size)
        parameters = {name: to_numpy(tensor) for name, tensor in mechanism.state_dict().items()}
        inputs = {name: to_numpy(tensor) for name, tensor in tensors.items()}
        atol = tolerance(claim._replace(impl="reference"), layout, torch.float64 if size == 8 else torch.float32) * 4
        for mask_case in mask_cases:
            if is_refused(mechanism, tensors, mask_case, layout):
                continue
            allowed = expand_allowed(mask_case, layout)
            cache_key = (claim.mechanism, layout, mask_case.name)
            known = parameters | inputs
            weights = compute_once(
                (*cache_key, "weights"), partial(oracle_weights, claim, inputs, allowed, known, layout)
            )
            with torch.no_grad():
                observation = mechanism.observe(mask=mask_case.mask(layout), top=TOP, rows=list(QUERY_ROWS), **tensors)
            note = (mask_case.name, layout)
            if mechanism.weights_are == "distribution":
                np.testing.assert_allclose(
                    to_numpy(observation.entropy), compute_entropy(weights), atol=10 * atol, err_msg=str(note)
                )
            else:
                assert observation.entropy is None
            np.testing.assert_allclose(
                to_numpy(observation.received), weights.sum(2), atol=atol * layout.queries, err_msg=str(note)
            )
            np.testing.assert_allclose(
                to_numpy(observation.rows), weights[:, :, list(QUERY_ROWS)], atol=atol, err_msg=str(note)
            )
            largest_first = np.argsort(-np.abs(weights), axis=-1)[..., :TOP]
            best = np.take_along_axis(weights, largest_first, axis=-1)
            np.testing.assert_allclose(to_numpy(observation.top_weights), best, atol=atol, err_msg=str(note))
            assert_top_keys_match(observation, weights, allowed, atol, note)
            output = weights @ inputs["value"].repeat(layout.group, axis=1)
            largest = max(1.0, float(np.abs(output).max()))
            np.testing.assert_allclose(
                to_numpy(observation.output),
                output,
                atol=tolerance(claim, layout, tensors["query"].dtype) * 4 * largest,
            )
            if claim.mechanism in ("dot_product", "luong_dot"):
                scale = 1.0 if claim.mechanism == "luong_dot" else None
                exact = compute_once(
                    (*cache_key, "all"), partial(oracle.observe, *inputs.values(), allowed, scale=scale)
                )
                np.testing.assert_allclose(to_numpy(observation.lse), exact.lse, atol=10 * atol, err_msg=str(note))
    record_proof(claim, complete=case.complete)


def assert_top_keys_match(observation, weights, allowed, atol, note) -> None:
    keys, count = observation.top_keys.cpu().numpy(), np.minimum(allowed.sum(-1), TOP)
    is_key = keys >= 0
    assert (is_key.sum(-1) == count).all(), note
    assert (is_key[..., :-1] >= is_key[..., 1:]).all(), note  # -1 only at the end
    top_weights = np.take_along_axis(weights, np.maximum(keys, 0), axis=-1)
    np.testing.assert_allclose(np.where(is_key, top_weights, 0), to_numpy(observation.top_weights), atol=atol)
    assert np.take_along_axis(allowed, np.maximum(keys, 0), axis=-1)[is_key].all(), note
    ordered = np.sort(keys, axis=-1)
    assert not ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(), (*note, "a repeated key")

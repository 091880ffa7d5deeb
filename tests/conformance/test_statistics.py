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
from conformance.mechanism_oracles import ORACLES
from conformance.test_agreement import to_numpy, tolerance
from oracles import attention as oracle
from regard.kernels.reference import observe as reference_observe

TOP, QUERY_ROWS = 4, (0, 3, -1)
_cached: dict[tuple, Any] = {}


def compute_once(place: tuple, compute: Callable[[], Any]) -> Any:
    """Compute an oracle's result once, for all implementations and dtypes of a mechanism."""
    if place not in _cached:
        _cached[place] = compute()
    return _cached[place]


def oracle_weights(claim: Claim, inputs, allowed, parameters, at: Layout) -> np.ndarray:
    """Weights (batch, heads, queries, keys), from the oracle's output for one-hot values."""
    key_heads = at.key_heads
    ones = np.broadcast_to(np.eye(at.keys), (at.batch, key_heads, at.keys, at.keys))
    return ORACLES[claim.mechanism].forward(inputs["query"], inputs["key"], ones, allowed, parameters)


def compute_entropy(weights: np.ndarray) -> np.ndarray:
    logarithms = np.log(np.where(weights > 0, weights, 1.0))
    return -(weights * logarithms).sum(-1)


@parametrize_cases("statistics")
def test_statistics_are_those_of_the_oracle(case: ClaimCase, without_shape_checks, monkeypatch, record_proof) -> None:
    claim = case.claim
    for _, at, trials in case.groups:
        mechanism, given = build_mechanism(claim, at), make_tensors(claim, at)
        size = 8 if claim.dtype == "float64" else 4
        # three queries per tile, so that there are several tiles and the last one is partial
        monkeypatch.setattr(reference_observe, "_TILE_BYTES", 3 * at.batch * at.heads * at.keys * size)
        parameters = {name: to_numpy(tensor) for name, tensor in mechanism.named_parameters()}
        inputs = {name: to_numpy(tensor) for name, tensor in given.items()}
        close = tolerance(claim._replace(impl="reference"), at, torch.float64 if size == 8 else torch.float32) * 4
        for trial in trials:
            if is_refused(mechanism, given, trial, at):
                continue
            allowed = expand_allowed(trial, at)
            place = (claim.mechanism, at, trial.name)
            weights = compute_once((*place, "weights"), partial(oracle_weights, claim, inputs, allowed, parameters, at))
            with torch.no_grad():
                seen = mechanism.observe(*given.values(), trial.mask(at), top=TOP, rows=list(QUERY_ROWS))
            note = (trial.name, at)
            if mechanism.weights_are == "distribution":
                np.testing.assert_allclose(
                    to_numpy(seen.entropy), compute_entropy(weights), atol=10 * close, err_msg=str(note)
                )
            else:
                assert seen.entropy is None
            np.testing.assert_allclose(
                to_numpy(seen.received), weights.sum(2), atol=close * at.queries, err_msg=str(note)
            )
            np.testing.assert_allclose(
                to_numpy(seen.rows), weights[:, :, list(QUERY_ROWS)], atol=close, err_msg=str(note)
            )
            largest_first = np.argsort(-np.abs(weights), axis=-1)[..., :TOP]
            best = np.take_along_axis(weights, largest_first, axis=-1)
            np.testing.assert_allclose(to_numpy(seen.top_weights), best, atol=close, err_msg=str(note))
            assert_top_keys_match(seen, weights, allowed, close, note)
            output = weights @ inputs["value"].repeat(at.group, axis=1)
            np.testing.assert_allclose(
                to_numpy(seen.output), output, atol=tolerance(claim, at, given["query"].dtype) * 4
            )
            if claim.mechanism in ("dot_product", "luong_dot"):
                scale = 1.0 if claim.mechanism == "luong_dot" else None
                exact = compute_once((*place, "all"), partial(oracle.observe, *inputs.values(), allowed, scale=scale))
                np.testing.assert_allclose(to_numpy(seen.lse), exact.lse, atol=10 * close, err_msg=str(note))
    record_proof(claim, everything=case.everything)


def assert_top_keys_match(seen, weights, allowed, close, note) -> None:
    keys, count = seen.top_keys.cpu().numpy(), np.minimum(allowed.sum(-1), TOP)
    there = keys >= 0
    assert (there.sum(-1) == count).all(), note
    assert (there[..., :-1] >= there[..., 1:]).all(), note  # -1 only at the end
    found = np.take_along_axis(weights, np.maximum(keys, 0), axis=-1)
    np.testing.assert_allclose(np.where(there, found, 0), to_numpy(seen.top_weights), atol=close)
    assert np.take_along_axis(allowed, np.maximum(keys, 0), axis=-1)[there].all(), note
    in_order = np.sort(keys, axis=-1)
    assert not ((in_order[..., 1:] == in_order[..., :-1]) & (in_order[..., 1:] >= 0)).any(), (*note, "a key twice")

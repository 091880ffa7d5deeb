"""``observe``: the output and every statistic against the oracle, in tiles so small that each call has many.

Promised beside the five: what observe reports is exact. Tolerances are those of promise 5 for sums in float32
(float64 in float64); the statistics are never rounded to half precision. Equal weights may come in any order, so the
keys of the largest weights are checked by the weights they have.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from conformance.calls import build, tensors
from conformance.cases import Case, cases
from conformance.claims import Claim
from conformance.oracle_of import ORACLES
from conformance.refused import is_refused
from conformance.test_agreement import array, tolerance
from conformance.trials import Layout, allowed_of
from oracles import attention as oracle
from regard.kernels.reference import observe as reference_observe

TOP, ASKED = 4, (0, 3, -1)
_cached: dict[tuple, Any] = {}


def once(place: tuple, compute: Callable[[], Any]) -> Any:
    """What an oracle gives: the same for all implementations and dtypes of a mechanism."""
    if place not in _cached:
        _cached[place] = compute()
    return _cached[place]


def weights_of(claim: Claim, inputs, allowed, parameters, at: Layout) -> np.ndarray:
    """The weights by the oracle of the mechanism's output: those that values of one 1 each read off."""
    key_heads = at.key_heads
    ones = np.broadcast_to(np.eye(at.keys), (at.batch, key_heads, at.keys, at.keys))
    return ORACLES[claim.mechanism].forward(inputs["query"], inputs["key"], ones, allowed, parameters)


def entropy_of(weights: np.ndarray) -> np.ndarray:
    logarithms = np.log(np.where(weights > 0, weights, 1.0))
    return -(weights * logarithms).sum(-1)


@cases("statistics")
def test_statistics_are_those_of_the_oracle(case: Case, as_users_call, monkeypatch, proved) -> None:
    claim = case.claim
    for _, at, trials in case.groups:
        mechanism, given = build(claim, at), tensors(claim, at)
        size = 8 if claim.dtype == "float64" else 4
        # three queries a tile, so that a tile's edge falls inside and the last one is cut short
        monkeypatch.setattr(reference_observe, "_TILE_BYTES", 3 * at.batch * at.heads * at.keys * size)
        parameters = {name: array(tensor) for name, tensor in mechanism.named_parameters()}
        inputs = {name: array(tensor) for name, tensor in given.items()}
        close = tolerance(claim._replace(impl="reference"), at, torch.float64 if size == 8 else torch.float32) * 4
        for trial in trials:
            if is_refused(mechanism, given, trial, at):
                continue
            allowed = allowed_of(trial, at)
            place = (claim.mechanism, at, trial.name)
            weights = once((*place, "weights"), partial(weights_of, claim, inputs, allowed, parameters, at))
            with torch.no_grad():
                seen = mechanism.observe(*given.values(), trial.mask(at), top=TOP, rows=list(ASKED))
            note = (trial.name, at)
            if mechanism.weights_are == "distribution":
                np.testing.assert_allclose(array(seen.entropy), entropy_of(weights), atol=10 * close, err_msg=str(note))
            else:
                assert seen.entropy is None
            np.testing.assert_allclose(array(seen.received), weights.sum(2), atol=close * at.queries, err_msg=str(note))
            np.testing.assert_allclose(array(seen.rows), weights[:, :, list(ASKED)], atol=close, err_msg=str(note))
            largest_first = np.argsort(-np.abs(weights), axis=-1)[..., :TOP]
            best = np.take_along_axis(weights, largest_first, axis=-1)
            np.testing.assert_allclose(array(seen.top_weights), best, atol=close, err_msg=str(note))
            assert_keys_have_their_weights(seen, weights, allowed, close, note)
            output = weights @ inputs["value"].repeat(at.group, axis=1)
            np.testing.assert_allclose(array(seen.output), output, atol=tolerance(claim, at, given["query"].dtype) * 4)
            if claim.mechanism in ("dot_product", "luong_dot"):
                scale = 1.0 if claim.mechanism == "luong_dot" else None
                exact = once((*place, "all"), partial(oracle.observe, *inputs.values(), allowed, scale=scale))
                np.testing.assert_allclose(array(seen.lse), exact.lse, atol=10 * close, err_msg=str(note))
    proved(claim, everything=case.everything)


def assert_keys_have_their_weights(seen, weights, allowed, close, note) -> None:
    keys, count = seen.top_keys.cpu().numpy(), np.minimum(allowed.sum(-1), TOP)
    there = keys >= 0
    assert (there.sum(-1) == count).all(), note
    assert (there[..., :-1] >= there[..., 1:]).all(), note  # -1 only at the end
    found = np.take_along_axis(weights, np.maximum(keys, 0), axis=-1)
    np.testing.assert_allclose(np.where(there, found, 0), array(seen.top_weights), atol=close)
    assert np.take_along_axis(allowed, np.maximum(keys, 0), axis=-1)[there].all(), note
    in_order = np.sort(keys, axis=-1)
    assert not ((in_order[..., 1:] == in_order[..., :-1]) & (in_order[..., 1:] >= 0)).any(), (*note, "a key twice")

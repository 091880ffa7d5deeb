"""A function without a backward pass is right in its outputs alone, and the report says so."""

import numpy as np

from regard.conformance import check


def in_numpy(query, key, value):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def in_torch(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def detached(query, key, value):
    return in_torch(query, key, value).detach()


def _reasons(function, framework):
    report = check(function, framework=framework)
    return {outcome.reason for outcome in report.outcomes if outcome.verdict == "right"}


def test_a_report_says_that_gradients_were_not_compared():
    without = "the function has no backward pass"
    assert without in _reasons(in_numpy, "numpy")
    assert without in _reasons(detached, "torch")
    assert _reasons(in_torch, "torch") == {""}

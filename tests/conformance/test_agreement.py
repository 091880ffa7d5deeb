"""Promise 5: every implementation agrees with an oracle in float64, forward and backward.

How close follows from the dtypes. Let eps be the dtype's epsilon, and wide the epsilon of the dtype that sums are taken
in: float32 for half precision, the dtype itself otherwise. A number that passes through sums of L terms in all
(head_dim for the score, keys for the softmax, value_dim, keys or queries for a gradient) is off by at most
about L * wide of the largest term, and by eps / 2 more each time it is rounded to the dtype itself. So

    |ours - oracle| <= (L * wide + roundings * eps / 2) * largest,      largest = max(1, max |oracle|)

Roundings are 1 for "reference" and for additive scores (half precision is computed in float32, and rounded at the
end), and for the fused kernels of the dot product and for what is built on them 8: the weights, their gradient and each
partial result are rounded on the way.
"""

import numpy as np
import pytest
import torch

from conformance import oracle_of
from conformance.calls import build, run, tensors, upstream_of
from conformance.cases import Case, cases
from conformance.claims import CLAIMS, Claim
from conformance.trials import LAYOUTS, TRIALS, Layout, allowed_of

_cached: dict[tuple, tuple] = {}


def tolerance(claim: Claim, at: Layout, dtype: torch.dtype) -> float:
    """What is allowed, relative to the largest number of the result."""
    terms = 2 * at.head_dim + at.keys * at.queries * at.group + at.value_dim
    wide = torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps
    additive = claim.mechanism in ("additive", "luong_concat")
    fused = not additive and (claim.impl != "reference" or claim.mechanism in ("luong_dot", "luong_general"))
    return terms * wide + (8 if fused else 1) * torch.finfo(dtype).eps / 2


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def expected(claim: Claim, at: Layout, trial, parameters, given, upstream) -> tuple:
    """Output and gradients of the oracle; the same for all implementations and dtypes of a mechanism."""
    place = (claim.mechanism, at, trial.name)
    if place not in _cached:
        allowed = allowed_of(trial, at)
        inputs = (given["query"], given["key"], given["value"], allowed, parameters)
        output = oracle_of.FORWARD[claim.mechanism](*inputs)
        _cached[place] = (output, oracle_of.gradients(claim.mechanism, *inputs, upstream))
    return _cached[place]


@cases("agreement")
def test_agrees_with_the_oracle(case: Case, as_users_call, proved) -> None:
    claim = case.claim
    for _, at, trials in case.groups:
        mechanism, given, upstream = build(claim, at), tensors(claim, at), upstream_of(claim, at)
        allowed_error = tolerance(claim, at, upstream.dtype)
        parameters = {name: array(tensor) for name, tensor in mechanism.named_parameters()}
        inputs = {name: array(tensor) for name, tensor in given.items()}
        for trial in trials:
            output, gradients = expected(claim, at, trial, parameters, inputs, array(upstream))
            ours = run(mechanism, given, trial.mask(at), upstream)
            assert ours.output.dtype == upstream.dtype
            for name, exact in {"output": output, **gradients}.items():
                got = array(ours.output if name == "output" else ours.gradients[name])
                error = np.abs(got - exact).max() / max(1.0, np.abs(exact).max())
                assert error <= allowed_error, (trial.name, at, name, error)
    proved(claim, everything=case.everything)


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim[0] == "agreement" and claim.dtype == "float32"])
def test_shapes_are_as_annotated(claim: Claim) -> None:
    """The promises are tried as users call, without the suite's shape checks, which take their time; here with them."""
    for at, trials in zip(LAYOUTS, (TRIALS[::3], TRIALS[1::3], TRIALS[2::3]), strict=True):
        mechanism, given = build(claim, at), tensors(claim, at, bias=True)
        for trial in trials:
            run(mechanism, given, trial.mask(at), upstream_of(claim, at))


def test_every_row_of_the_catalogue_has_an_oracle() -> None:
    import regard

    assert {entry.name for entry in regard.catalogue()} == set(oracle_of.FORWARD)

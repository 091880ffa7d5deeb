"""Promise 4, as far as it reaches today: the same inputs give the same bits, forward and backward, every time."""

import torch

from conformance.calls import build, run, tensors, upstream_of
from conformance.claims import Claim, claims
from conformance.trials import LAYOUTS, TRIALS


@claims("determinism")
def test_same_inputs_same_bits(claim: Claim, as_users_call, proved) -> None:
    at = LAYOUTS[2]
    mechanism, given, upstream = build(claim, at), tensors(claim, at, bias=True), upstream_of(claim, at)
    for trial in TRIALS:
        first, second = (run(mechanism, given, trial.mask(at), upstream) for _ in range(2))
        assert torch.equal(first.output, second.output), trial.name
        for name, gradient in first.gradients.items():
            assert torch.equal(gradient, second.gradients[name]), (trial.name, name)
    proved(claim)

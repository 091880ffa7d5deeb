"""Promise 5: every implementation agrees with an oracle in float64, forward and backward.

The tolerance is derived from the dtypes. Let eps be the dtype's epsilon, and wide the epsilon of the dtype of the sums:
float32 for half precision, the dtype itself otherwise. A number that is computed by sums of L terms in total
(head_dim for the score, keys for the softmax, value_dim, keys or queries for a gradient) has an error of at most
about L * wide of the largest term, and eps / 2 more each time it is rounded to the dtype itself. So

    |ours - oracle| <= bound * largest,      bound = L * wide + roundings * eps / 2,      largest = max(1, max |oracle|)

Gradients are compared along directions of random signs, since the oracle states the forward equation alone: the slope
of the oracle is sum_n sign_n gradient_n. The errors of N numbers, each within the bound and with a random sign, add
up to at most 6 sqrt(N) times the bound, except in one case in 10^7 (Hoeffding's inequality).

The number of roundings is 1 for "reference" and for additive scores (half precision is computed in float32 and rounded
at the end), and 8 for the fused dot-product kernels and mechanisms that are built on them: the weights, their gradient
and each partial result are rounded.
"""

import numpy as np
import pytest
import torch

from conformance.calls import build_mechanism, make_grad_output, make_tensors, run_with_gradients
from conformance.check_refusal import is_refused
from conformance.claim_cases import ClaimCase, parametrize_cases
from conformance.claims import PORTABLE_CLAIMS, Claim
from conformance.mask_cases import LAYOUTS, MASK_CASES, Layout, MaskCase, expand_allowed
from conformance.mechanism_oracles import ORACLES, directional_derivative

DIRECTIONS = 4
"""Directions for each input and parameter in a complete case; a sample uses only the first."""

_outputs: dict[tuple, np.ndarray] = {}
_slopes: dict[tuple, float] = {}


def tolerance(claim: Claim, at: Layout, dtype: torch.dtype) -> float:
    """Return the allowed error, relative to the largest number of the result."""
    terms = 2 * at.head_dim + at.keys * at.queries * at.group + at.value_dim
    wide = torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps
    fused = claim.impl in ("native", "sdpa", "flex", "auto") or claim.mechanism in ("luong_dot", "luong_general")
    fused = fused and claim.mechanism not in ("additive", "luong_concat")
    return terms * wide + (8 if fused else 1) * torch.finfo(dtype).eps / 2


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def random_signs(shape: tuple[int, ...], number: int) -> np.ndarray:
    """Random array of -1 and 1, seeded by ``number`` and the shape."""
    return np.random.default_rng([number, *shape]).choice([-1.0, 1.0], shape)


class OracleResult:
    """Result of a mechanism's oracle; cached, since all implementations and dtypes share it."""

    def __init__(
        self, name: str, at: Layout, trial: MaskCase, given: dict[str, np.ndarray], upstream: np.ndarray
    ) -> None:
        self.name, self.cache_key, self.given, self.upstream = name, (name, at, trial.name), given, upstream
        self.allowed = expand_allowed(trial, at)

    def output(self) -> np.ndarray:
        if self.cache_key not in _outputs:
            given = (self.given["query"], self.given["key"], self.given["value"], self.allowed, self.given)
            _outputs[self.cache_key] = ORACLES[self.name].forward(*given)
        return _outputs[self.cache_key]

    def slope(self, of: str, number: int) -> float:
        """Directional derivative for one input or parameter, along direction ``number``."""
        place = (*self.cache_key, of, number)
        if place not in _slopes:
            along = random_signs(self.given[of].shape, number)
            _slopes[place] = directional_derivative(self.name, self.given, self.allowed, self.upstream, of, along)
        return _slopes[place]


@parametrize_cases("agreement")
def test_agrees_with_the_oracle(case: ClaimCase, without_shape_checks, record_proof) -> None:
    claim = case.claim
    for _, at, trials in case.groups:
        mechanism, given, upstream = build_mechanism(claim, at), make_tensors(claim, at), make_grad_output(claim, at)
        bound = tolerance(claim, at, upstream.dtype)
        numbers = {name: to_numpy(tensor) for name, tensor in (*given.items(), *mechanism.named_parameters())}
        for trial in trials:
            if is_refused(mechanism, given, trial, at):
                continue
            exact = OracleResult(claim.mechanism, at, trial, numbers, to_numpy(upstream))
            ours = run_with_gradients(mechanism, given, trial.mask(at), upstream)
            assert ours.output.dtype == upstream.dtype
            error = np.abs(to_numpy(ours.output) - exact.output()).max() / max(1.0, np.abs(exact.output()).max())
            assert error <= bound, (trial.name, at, error)
            for name, tensor in ours.gradients.items():
                gradient, largest = to_numpy(tensor), max(1.0, float(tensor.abs().max()))
                for number in range(DIRECTIONS if case.everything else 1):
                    slope = (gradient * random_signs(gradient.shape, number)).sum()
                    error = abs(slope - exact.slope(name, number)) / (largest * 6 * np.sqrt(gradient.size))
                    assert error <= bound, (trial.name, at, name, error)
    record_proof(claim, everything=case.everything)


@pytest.mark.parametrize(
    "claim", [claim for claim in PORTABLE_CLAIMS if claim[0] == "agreement" and claim.dtype == "float32"]
)
def test_shapes_are_as_annotated(claim: Claim) -> None:
    """Other tests of promises disable the suite's shape checks, which are slow; this one keeps them enabled."""
    for at, trials in zip(LAYOUTS, (MASK_CASES[::3], MASK_CASES[1::3], MASK_CASES[2::3]), strict=True):
        mechanism, given = build_mechanism(claim, at), make_tensors(claim, at, bias=True)
        for trial in trials:
            if not is_refused(mechanism, given, trial, at):
                run_with_gradients(mechanism, given, trial.mask(at), make_grad_output(claim, at))


def test_every_row_of_the_catalogue_has_an_oracle() -> None:
    import regard

    assert {row.name for row in regard.catalogue()} == set(ORACLES)

"""Promise 5: every implementation agrees with an oracle in float64, forward and backward.

The tolerance is derived from the dtypes. Let eps be the dtype's epsilon, and wide the epsilon of the dtype of the sums:
float32 for half precision, the dtype itself otherwise. A number that is computed by sums of L terms in total
(head_dim for the score, keys for the softmax, value_dim, keys or queries for a gradient) has an error of at most
about L * wide of the largest term, and eps / 2 more each time it is rounded to the dtype itself. So

    |ours - oracle| <= bound * largest,      bound = L * wide + roundings * eps / 2,      largest = max(1, max |oracle|)

Gradients are compared along directions of random signs, since the oracle states the forward equation alone: the slope
of the oracle is sum_n sign_n gradient_n. The errors of N numbers, each within the bound and with a random sign, add
up to at most 6 sqrt(N) times the bound, except in one case in 10^7 (Hoeffding's inequality).

The number of roundings is 1 where half precision is computed in float32 and rounded at the end, and 8 for the fused
dot-product kernels and the mechanisms that are built on them (``Oracle.is_fused``): the weights, their gradient and
each partial result are rounded.
"""

import numpy as np
import pytest
import torch

from conformance.calls import build_mechanism, head_dim_of, make_grad_output, make_tensors, run_with_gradients
from conformance.check_refusal import is_refused
from conformance.claim_cases import ClaimCase, parametrize_cases, sample_groups
from conformance.claims import PORTABLE_CLAIMS, Claim
from conformance.mask_cases import LAYOUTS, Layout, MaskCase, expand_allowed
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.oracles.complex_step import slope
from regard.conformance.tolerance import relative_bound

DIRECTIONS = 4
"""Directions for each input and parameter in a complete case; a sample uses only the first."""

_outputs: dict[tuple, np.ndarray] = {}
_slopes: dict[tuple, float] = {}


def tolerance(claim: Claim, layout: Layout, dtype: torch.dtype) -> float:
    """Return the allowed error, relative to the largest number of the result."""
    terms = 2 * head_dim_of(claim, layout) + layout.keys * layout.queries * layout.group + layout.value_dim
    is_fused = ORACLES[claim.mechanism].is_fused and claim.impl != "reference"
    return relative_bound(terms, str(dtype).removeprefix("torch."), roundings=8 if is_fused else 1)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def random_signs(shape: tuple[int, ...], number: int) -> np.ndarray:
    """Random array of -1 and 1, seeded by ``number`` and the shape."""
    return np.random.default_rng([number, *shape]).choice([-1.0, 1.0], shape)


class OracleResult:
    """Result of a mechanism's oracle; cached, since all implementations and dtypes share it."""

    def __init__(
        self, name: str, layout: Layout, mask_case: MaskCase, arrays: dict[str, np.ndarray], upstream: np.ndarray
    ) -> None:
        self.name, self.cache_key, self.arrays, self.upstream = name, (name, layout, mask_case.name), arrays, upstream
        self.allowed = expand_allowed(mask_case, layout)

    def output(self) -> np.ndarray:
        if self.cache_key not in _outputs:
            inputs = (self.arrays["query"], self.arrays["key"], self.arrays["value"], self.allowed, self.arrays)
            _outputs[self.cache_key] = ORACLES[self.name].forward(*inputs)
        return _outputs[self.cache_key]

    def _weighted(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        inputs = (arrays["query"], arrays["key"], arrays["value"], self.allowed, arrays)
        return ORACLES[self.name].forward(*inputs) * self.upstream

    def slope(self, of: str, number: int) -> float:
        """Directional derivative for one input or parameter, along direction ``number``."""
        place = (*self.cache_key, of, number)
        if place not in _slopes:
            along = random_signs(self.arrays[of].shape, number)
            _slopes[place] = slope(self._weighted, self.arrays, of, along)
        return _slopes[place]


@parametrize_cases("agreement")
def test_agrees_with_the_oracle(case: ClaimCase, without_shape_checks, record_proof) -> None:
    claim = case.claim
    for _, layout, mask_cases in case.groups:
        mechanism, tensors, upstream = (
            build_mechanism(claim, layout),
            make_tensors(claim, layout),
            make_grad_output(claim, layout),
        )
        bound = tolerance(claim, layout, upstream.dtype)
        arrays = {name: to_numpy(tensor) for name, tensor in (*tensors.items(), *mechanism.state_dict().items())}
        for mask_case in mask_cases:
            if is_refused(mechanism, tensors, mask_case, layout):
                continue
            exact = OracleResult(claim.mechanism, layout, mask_case, arrays, to_numpy(upstream))
            ours = run_with_gradients(mechanism, tensors, mask_case.mask(layout), upstream)
            assert ours.output.dtype == upstream.dtype
            error = np.abs(to_numpy(ours.output) - exact.output()).max() / max(1.0, np.abs(exact.output()).max())
            assert error <= bound, (mask_case.name, layout, error)
            for name, tensor in ours.gradients.items():
                gradient, largest = to_numpy(tensor), max(1.0, float(tensor.abs().max()))
                for number in range(DIRECTIONS if case.complete else 1):
                    slope = (gradient * random_signs(gradient.shape, number)).sum()
                    error = abs(slope - exact.slope(name, number)) / (largest * 6 * np.sqrt(gradient.size))
                    assert error <= bound, (mask_case.name, layout, name, error)
    record_proof(claim, complete=case.complete)


OF_FLOAT32 = [claim for claim in PORTABLE_CLAIMS if claim.promise == "agreement" and claim.dtype == "float32"]


@pytest.mark.parametrize("claim", OF_FLOAT32)
def test_shape_annotations_hold(claim: Claim) -> None:
    """Keeps the suite's shape checks, which are slow; the other tests of promises disable them."""
    for _, layout, mask_cases in sample_groups(claim, LAYOUTS, OF_FLOAT32):
        mechanism, tensors = build_mechanism(claim, layout), make_tensors(claim, layout, bias=True)
        for mask_case in mask_cases:
            if not is_refused(mechanism, tensors, mask_case, layout):
                run_with_gradients(mechanism, tensors, mask_case.mask(layout), make_grad_output(claim, layout))


def test_every_row_of_the_catalogue_has_an_oracle() -> None:
    import regard

    assert {row.name for row in regard.catalogue()} == set(ORACLES)

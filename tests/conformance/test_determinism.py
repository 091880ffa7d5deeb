"""Promise 4: the same inputs give the same bits, forward and backward, every time.

In "native" with any number of threads; in the other implementations torch chooses the order of sums, and so it does in
the products of torch that come before a kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from conformance.calls import CallResult, build_mechanism, make_grad_output, make_tensors, run_with_gradients
from conformance.check_refusal import is_refused
from conformance.claim_cases import ClaimCase, parametrize_cases
from conformance.mask_cases import LAYOUTS

FEATURES_OF_TORCH = ("performer",)
"""Mechanisms whose features are products of torch: MKL rounds some of them otherwise in one thread than in three."""


@parametrize_cases("determinism", LAYOUTS[2:])
def test_same_inputs_same_bits(case: ClaimCase, without_shape_checks, record_proof) -> None:
    claim = case.claim
    ((_, layout, mask_cases),) = case.groups
    mechanism, tensors, upstream = (
        build_mechanism(claim, layout),
        make_tensors(claim, layout, bias=True),
        make_grad_output(claim, layout),
    )
    for mask_case in mask_cases:
        if is_refused(mechanism, tensors, mask_case, layout):
            continue
        first = run_with_gradients(mechanism, tensors, mask_case.mask(layout), upstream)
        assert_same(first, run_with_gradients(mechanism, tensors, mask_case.mask(layout), upstream), mask_case.name)
        if claim.impl == "native" and claim.mechanism not in FEATURES_OF_TORCH:
            with set_num_threads(3):
                assert_same(
                    first,
                    run_with_gradients(mechanism, tensors, mask_case.mask(layout), upstream),
                    (mask_case.name, "3 threads"),
                )
    record_proof(claim, complete=case.complete)


@contextmanager
def set_num_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


def assert_same(first: CallResult, second: CallResult, note: object) -> None:
    assert torch.equal(first.output, second.output), note
    for name, gradient in first.gradients.items():
        assert torch.equal(gradient, second.gradients[name]), (note, name)

"""The promises of the catalogue on the device under test, for every implementation but "native"; masks at one layout.

``make gpu`` runs them, a promise and an implementation at a time (``benchmarks.devices.pieces``), which the names of
the tests have.
"""

from __future__ import annotations

import pytest
import torch

from conformance import test_agreement, test_empty_rows, test_statistics
from conformance.claim_cases import ClaimCase, sample_groups
from conformance.claims import Claim, list_claims
from conformance.mask_cases import LAYOUTS
from device_under_test import find_device_under_test
from regard.devices import has_float64

DEVICE = torch.device(find_device_under_test() or "cpu")
PROOFS = {
    "agreement": test_agreement.test_agrees_with_the_oracle,
    "empty rows": test_empty_rows.test_empty_rows_give_zero_output_and_gradients,
    "statistics": test_statistics.test_statistics_agree_with_the_oracle,
}
ON_CUDA_ALONE = ("flex", "fla")


def is_for_device(claim: Claim) -> bool:
    """Whether the device can compute a claim."""
    dtypes = {"float32", "bfloat16"} | ({"float64"} if has_float64(DEVICE) else set())
    has_kernels = DEVICE.type == "cuda" or claim.impl not in ON_CUDA_ALONE
    return claim.promise in PROOFS and claim.dtype in dtypes and has_kernels


CLAIMS = [claim._replace(device=str(DEVICE)) for claim in list_claims("cuda") if is_for_device(claim)]
CASES = [ClaimCase(claim, sample_groups(claim, LAYOUTS, CLAIMS), complete=False) for claim in CLAIMS]


def name_case(case: ClaimCase) -> str:
    promise, mechanism, impl, dtype = (part.replace(" ", "_") for part in case.claim[:4])
    return f"{promise}-{mechanism}-impl_{impl}-{dtype}"


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_promise_holds_on_the_device(case: ClaimCase, without_shape_checks, record_proof, monkeypatch) -> None:
    extra_arguments = (monkeypatch,) if case.claim.promise == "statistics" else ()
    PROOFS[case.claim.promise](case, None, *extra_arguments, record_proof)

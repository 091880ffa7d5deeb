"""The promises of the catalogue on the fake device, for which regard has no kernels; each mask at one layout."""

from __future__ import annotations

import pytest

from conformance import test_agreement, test_empty_rows, test_statistics
from conformance.claim_cases import ClaimCase, sample_groups
from conformance.claims import PORTABLE_CLAIMS
from conformance.mask_cases import LAYOUTS
from fake_device.device import DEVICE

PROOFS = {
    "agreement": test_agreement.test_agrees_with_the_oracle,
    "empty rows": test_empty_rows.test_empty_rows_give_zero_output_and_gradients,
    "statistics": test_statistics.test_statistics_agree_with_the_oracle,
}
DEVICE_CLAIMS = [
    claim._replace(device=str(DEVICE))
    for claim in PORTABLE_CLAIMS
    if claim.promise in PROOFS and claim.impl != "native" and claim.dtype == "float32"
]
CASES = [ClaimCase(claim, sample_groups(claim, LAYOUTS, DEVICE_CLAIMS), complete=False) for claim in DEVICE_CLAIMS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.claim[:4]))
def test_promise_holds_on_the_fake_device(case: ClaimCase, without_shape_checks, record_proof, monkeypatch) -> None:
    extra_arguments = (monkeypatch,) if case.claim.promise == "statistics" else ()
    PROOFS[case.claim.promise](case, None, *extra_arguments, record_proof)

"""The promises of the catalogue on a device of their own, where no kernels of regard's are; each mask at one layout."""

from __future__ import annotations

import pytest

from conformance import calls, test_agreement, test_empty_rows, test_statistics
from conformance.cases import Case, sample_of
from conformance.claims import CLAIMS
from conformance.trials import LAYOUTS
from elsewhere.device import DEVICE

PROOFS = {
    "agreement": test_agreement.test_agrees_with_the_oracle,
    "empty rows": test_empty_rows.test_a_query_that_sees_nothing_gives_nothing,
    "statistics": test_statistics.test_statistics_are_those_of_the_oracle,
}
MADE_ELSEWHERE = [
    claim for claim in CLAIMS if claim.promise in PROOFS and claim.impl != "native" and claim.dtype == "float32"
]
CASES = [
    Case(claim, number, sample_of(claim, number, LAYOUTS), everything=False)
    for number, claim in enumerate(MADE_ELSEWHERE)
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.claim))
def test_a_promise_holds_elsewhere(case: Case, as_users_call, proved, monkeypatch) -> None:
    monkeypatch.setattr(calls, "device_of", lambda claim: DEVICE)
    more = (monkeypatch,) if case.claim.promise == "statistics" else ()
    PROOFS[case.claim.promise](case, None, *more, proved)

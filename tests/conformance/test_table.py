"""The page in the docs holds the claims that the tests are made from: no more, no fewer."""

from pathlib import Path

from conformance.claims import CLAIMS
from conformance.table import MEANING, render

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"


def test_the_page_in_the_docs_is_the_one_the_claims_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(CLAIMS), "write it again: make conformance"


def test_every_promise_has_a_meaning() -> None:
    assert {claim.promise for claim in CLAIMS} == set(MEANING)

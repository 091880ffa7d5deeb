"""The conformance page in the docs contains exactly the claims that the tests are generated from."""

from pathlib import Path

from conformance.claims import PORTABLE_CLAIMS
from conformance.promise_table import PROMISE_MEANINGS, render_page

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"


def test_docs_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(PORTABLE_CLAIMS), "write it again: make conformance"


def test_every_promise_is_explained() -> None:
    assert {claim.promise for claim in PORTABLE_CLAIMS} == set(PROMISE_MEANINGS)

"""``assert_no_leaks``: an audit as one line of a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.arguments import explain_arguments
from regard.auditing.results import AuditReport
from regard.auditing.run_audit import audit


@explain_arguments
def assert_no_leaks(
    model: Any,
    inputs: Any = None,
    *,
    causal: bool | None = None,
    prefix: int | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    quick: bool = True,
    strict: bool = False,
    length: int | None = None,
    seed: int = 0,
) -> AuditReport:
    """Audit a model, and raise AssertionError, with the report, unless all properties hold that can be asked.

    Arguments as for ``regard.audit``. It raises as well if no property could be asked, so that a test never passes on
    nothing. Returns the report.
    """
    __tracebackhide__ = True  # pytest leaves this frame out
    report = audit(
        model,
        inputs,
        causal=causal,
        prefix=prefix,
        only=only,
        skip=skip,
        quick=quick,
        strict=strict,
        length=length,
        seed=seed,
    )
    assert_holds(report)
    return report


def assert_holds(report: AuditReport) -> None:
    """Raise AssertionError, with the report, if a property leaks, or if none could be asked."""
    __tracebackhide__ = True  # pytest leaves this frame out
    if report.exit_code:
        raise AssertionError(f"{'tokens leak' if report.leaks else 'nothing could be asked'}\n{report}")

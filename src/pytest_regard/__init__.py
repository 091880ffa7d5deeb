"""The pytest plugin of regard: the fixture ``regard_audit``.

pytest imports it in each environment where regard is installed. So it imports nothing before a test uses the fixture,
and it is a package beside regard: importing a module of regard would load its kernels, and jaxtyping's plugin for shape
checks refuses packages that are already imported.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from regard.auditing import AuditReport


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture."""
    group = parser.getgroup("regard", "audits of attention models")
    group.addoption(
        "--regard-thorough",
        action="store_true",
        help="regard_audit tries the properties that take long, too",
    )
    group.addoption(
        "--regard-pages",
        metavar="FOLDER",
        type=Path,
        help="regard_audit writes a page of each report to FOLDER, named after the test",
    )


@pytest.fixture
def regard_audit(request: pytest.FixtureRequest) -> Callable[..., AuditReport]:
    """Audit a model, and fail with the report unless all properties hold that can be asked.

    It is a function with the arguments of regard.assert_no_leaks: regard_audit(model, inputs, causal=True). Properties
    that take long are tried with quick=False, and in all tests with the option --regard-thorough. --regard-pages FOLDER
    writes a page of each report.
    """
    is_quick = not request.config.getoption("--regard-thorough")
    folder: Path | None = request.config.getoption("--regard-pages")
    numbers = itertools.count(1)

    def audit(model: Any, inputs: Any = None, **arguments: Any) -> AuditReport:
        __tracebackhide__ = True
        import regard
        from regard.auditing.assertion import assert_holds

        report = regard.audit(model, inputs, **{"quick": is_quick, **arguments})
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^\w.-]+", "-", request.node.nodeid)[:200]
            report.save(folder / f"{name}-{next(numbers)}.html", overwrite=True)
        assert_holds(report)
        return report

    return audit

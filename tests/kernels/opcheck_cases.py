"""torch's contract of an operator, checked by torch.library.opcheck, for arguments of several kinds.

Schema, registration for autograd and shapes are checked for every kind. Tracing with sizes of any number takes a
hundred times as long: by day for a few kinds, and for all of them by night.
"""

from collections.abc import Iterable
from typing import Any

import pytest

QUICK_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
TRACING_CHECK = "test_aot_dispatch_dynamic"


def parametrize_opcheck(kinds: Iterable[str], *, by_day: Iterable[str]) -> Any:
    """Run the test with ``name``, each of the kinds, and ``utilities``, which are the ``test_utils`` of opcheck."""
    quick = [pytest.param(kind, QUICK_CHECKS, id=kind) for kind in kinds]
    tracing = [
        pytest.param(kind, TRACING_CHECK, id=f"{kind}, traced", marks=[] if kind in set(by_day) else pytest.mark.slow)
        for kind in kinds
    ]
    return pytest.mark.parametrize(("name", "utilities"), quick + tracing)

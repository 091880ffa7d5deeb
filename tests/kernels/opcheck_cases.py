"""torch's contract for operators, checked by torch.library.opcheck with several kinds of arguments.

Schema, autograd registration and shapes are checked for every kind. Tracing with dynamic sizes takes a hundred times as
long: for ``default_kinds`` it is in the default run, and for the others it is marked slow.
"""

from collections.abc import Iterable
from typing import Any

import pytest

QUICK_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
TRACING_CHECK = "test_aot_dispatch_dynamic"


def parametrize_opcheck(kinds: Iterable[str], *, default_kinds: Iterable[str]) -> Any:
    """Parametrize a test over ``name`` (each of the kinds) and ``utilities`` (the ``test_utils`` of opcheck)."""
    quick = [pytest.param(kind, QUICK_CHECKS, id=kind) for kind in kinds]
    tracing = [
        pytest.param(
            kind, TRACING_CHECK, id=f"{kind}, traced", marks=[] if kind in set(default_kinds) else pytest.mark.slow
        )
        for kind in kinds
    ]
    return pytest.mark.parametrize(("name", "utilities"), quick + tracing)

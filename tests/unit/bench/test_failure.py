"""The reason why a case of ``regard bench`` has no result, in one line."""

import pytest

from regard.bench.case_process import describe_failure
from regard.errors import RefusedError


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), "not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "not enough memory"),
        (RuntimeError("Out of memory"), "not enough memory"),
        (RuntimeError("shapes differ\nin line two"), "RuntimeError: shapes differ"),
        (RefusedError("no such mask", expected="a window", got="a pattern"), "no such mask (got a pattern)"),
    ],
)
def test_why_a_case_has_no_result(error, expected):
    assert describe_failure(error) == expected

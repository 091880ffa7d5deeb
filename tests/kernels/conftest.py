"""Fixtures of the kernel tests."""

from collections.abc import Iterator

import pytest

from regard.kernels import extension


@pytest.fixture
def poison_scratch_memory() -> Iterator[None]:
    """Fill scratch memory with NaN, so that a read before the first write changes the result."""
    extension.native.poison(True)
    yield
    extension.native.poison(False)

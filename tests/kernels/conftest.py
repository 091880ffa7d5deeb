"""What the tests of the kernels share."""

from collections.abc import Iterator

import pytest

from regard.kernels import extension


@pytest.fixture
def poison_scratch_memory() -> Iterator[None]:
    """Scratch memory full of NaN: what is read before it is written shows."""
    extension.native.poison(True)
    yield
    extension.native.poison(False)

"""Collections of garbage between timings take little: what was alive before a test is left out of them."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def freeze_old_objects() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()

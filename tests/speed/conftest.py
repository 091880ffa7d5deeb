"""Exclude objects that existed before a test from garbage collection, so that collections between timings are short."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def freeze_old_objects() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()

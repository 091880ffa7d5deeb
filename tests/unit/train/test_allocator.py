"""Size of oneDNN's kernel cache, measured by the kernels that oneDNN reports to create."""

from __future__ import annotations

import os
import subprocess

import pytest

from cli_process import ENVIRONMENT, fork_command
from regard.train.allocator import limit_kernel_cache

SHAPES = 70  # more than the cache keeps
PRODUCTS = f"""
from regard.train.allocator import limit_kernel_cache
limit_kernel_cache()
import torch
multiply, weight = torch.ops.mkldnn._linear_pointwise.default, torch.randn(64, 64)
for _ in range(2):
    for rows in range(100, 100 + {SHAPES}):
        multiply(torch.randn(rows, 64), weight, None, "none", [], "")
"""
CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def count_created_kernels(cache_size: str | None) -> int:
    """Return how many kernels oneDNN creates in two passes over the shapes, with this cache size."""
    environment = {**ENVIRONMENT, "ONEDNN_VERBOSE": "2"}
    environment.pop(CAPACITY, None)
    if cache_size is not None:
        environment[CAPACITY] = cache_size
    result = subprocess.run(
        [*fork_command("python"), "-"], input=PRODUCTS, env=environment, capture_output=True, text=True, check=True
    )
    return sum("create:cache_miss" in line for line in result.stdout.splitlines())


def test_default_cache_keeps_few_kernels():
    """In the second pass all are created again."""
    assert count_created_kernels(None) >= 2 * SHAPES


@pytest.mark.slow
def test_cache_size_of_1000_keeps_all_kernels():
    assert SHAPES <= count_created_kernels("1000") < 2 * SHAPES


def test_cache_size_of_the_user_is_not_changed(monkeypatch):
    monkeypatch.setenv(CAPACITY, "1000")
    limit_kernel_cache()
    assert os.environ[CAPACITY] == "1000"

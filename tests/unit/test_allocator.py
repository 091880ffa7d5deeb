"""How much oneDNN keeps, seen from outside: what it says of its kernels."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRODUCTS = """
from regard.train.allocator import keep_few_kernels
keep_few_kernels()
import torch
multiply, weight = torch.ops.mkldnn._linear_pointwise.default, torch.randn(64, 64)
for _ in range(2):
    for rows in range(100, 200):
        multiply(torch.randn(rows, 64), weight, None, "none", [], "")
"""


@pytest.mark.parametrize(("asked", "again"), [(None, True), ("1000", False)])
def test_few_kernels_are_kept_unless_more_are_asked_for(asked, again):
    """100 shapes, twice: the second time they are compiled again if only 64 were kept."""
    environment = {**os.environ, "ONEDNN_VERBOSE": "2"}
    environment.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)
    if asked is not None:
        environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = asked
    done = subprocess.run([sys.executable, "-c", PRODUCTS], capture_output=True, text=True, env=environment, check=True)
    made = sum("create:cache_miss" in line and "cpu" in line for line in done.stdout.splitlines())
    assert made == (200 if again else 100), done.stdout[-2000:]

"""How much oneDNN keeps, seen from outside: what it says of its kernels."""

from __future__ import annotations

import os
import subprocess
import sys

PRODUCTS = """
from regard.train.allocator import keep_few_kernels
keep_few_kernels()
import torch
multiply, weight = torch.ops.mkldnn._linear_pointwise.default, torch.randn(64, 64)
for _ in range(2):
    for rows in range(100, 200):
        multiply(torch.randn(rows, 64), weight, None, "none", [], "")
"""


def made(asked: str | None) -> int:
    """How many kernels oneDNN makes for 100 shapes, twice, where it was asked to keep so many."""
    environment = {**os.environ, "ONEDNN_VERBOSE": "2"}
    environment.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)
    if asked is not None:
        environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = asked
    done = subprocess.run([sys.executable, "-c", PRODUCTS], capture_output=True, text=True, env=environment, check=True)
    return sum("create:cache_miss" in line for line in done.stdout.splitlines())


def test_few_kernels_are_kept_unless_more_are_asked_for():
    """The second time all are made again if only 64 were kept, and none where there was room for 1,000."""
    assert made(None) >= made("1000") + 100 >= 200

"""Functions of other frameworks: by DLPack, JAX, and Triton's interpreter.

JAX and Triton take 1.4 GB, so they are no part of the quick suite: `make test-all` installs them into a folder of their
own, where they change nothing for the other tests.
"""

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from docs.pages import ROOT
from regard.conformance import check

FRAMEWORKS = ROOT / "build" / "frameworks"


def attend(query, key, value, causal=False):
    group = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(group, 1) for part in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    queries, keys = scores.shape[2:]
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if causal else keys)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
    return weights @ value


def test_framework_with_dlpack(monkeypatch):
    """A module that has nothing but ``from_dlpack``: its arrays, here torch's, share memory with those of the kit."""
    module = ModuleType("arrays_of_others")
    module.from_dlpack = torch.from_dlpack
    monkeypatch.setitem(sys.modules, module.__name__, module)
    report = check(attend, framework=module.__name__)
    assert report.framework == "dlpack"
    assert all("hidden" in cause for cause in report.causes()), report
    assert report.counts()["right"] > 20


def conform(*arguments, folder):
    """Run the command beside the frameworks."""
    assert FRAMEWORKS.is_dir(), "make frameworks installs JAX and Triton"
    environment = {**os.environ, "PYTHONPATH": str(FRAMEWORKS)}
    command = [sys.executable, "-W", "ignore", "-m", "regard", "conform", *arguments]
    options = {"capture_output": True, "text": True, "timeout": 600, "check": False}
    return subprocess.run(command, cwd=folder, env=environment, **options)


@pytest.mark.slow
def test_jax(tmp_path):
    result = conform(
        "jax.nn:dot_product_attention", "--framework", "jax", "--align", "start", "--json", folder=tmp_path
    )
    report = json.loads(result.stdout)
    assert report["conventions"][0] == "tensors are (batch, length, heads, head_dim)"
    assert report["counts"]["right"] > 50
    assert all("hidden" in cause or "sees no key" in cause for cause in report["causes"]), report["causes"]


TRITON_KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(Q, K, V, O, scale, queries, keys, D: tl.constexpr, TILE: tl.constexpr):
    start, head = tl.program_id(0), tl.program_id(1)
    rows, columns = start * TILE + tl.arange(0, TILE), tl.arange(0, D)
    places = head * queries * D + rows[:, None] * D + columns[None, :]
    q = tl.load(Q + places, mask=rows[:, None] < queries, other=0.0)
    highest, total = tl.full([TILE], float("-inf"), tl.float32), tl.zeros([TILE], tl.float32)
    summed = tl.zeros([TILE, D], tl.float32)
    for first in range(0, keys, TILE):
        at = first + tl.arange(0, TILE)
        k = tl.load(K + head * keys * D + at[:, None] * D + columns[None, :], mask=at[:, None] < keys, other=0.0)
        v = tl.load(V + head * keys * D + at[:, None] * D + columns[None, :], mask=at[:, None] < keys, other=0.0)
        scores = tl.where(at[None, :] < keys, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, factor = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        total = total * factor + tl.sum(weights, 1)
        summed = summed * factor[:, None] + tl.dot(weights, v)
        highest = higher
    tl.store(O + places, summed / total[:, None], mask=rows[:, None] < queries)


def attention(query, key, value, scale=None):
    batch, heads, queries, head_dim = query.shape
    if key.shape[1] != heads or head_dim % 16 or value.shape[3] != head_dim:
        raise ValueError("heads of a multiple of 16 numbers, as many of keys")
    query, key, value = (part.contiguous() for part in (query, key, value))
    output = torch.empty_like(query)
    scale = head_dim**-0.5 if scale is None else scale
    grid = (triton.cdiv(queries, 32), batch * heads)
    kernel[grid](query, key, value, output, scale, queries, key.shape[2], head_dim, 32)
    return output
"""


@pytest.mark.slow
def test_triton_in_its_interpreter(tmp_path):
    (tmp_path / "kernel_of_triton.py").write_text(TRITON_KERNEL, encoding="utf-8")
    result = conform("kernel_of_triton:attention", folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr

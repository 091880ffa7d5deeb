"""Contestants for exact attention, each called as its users call it.

    native         regard.attention(..., impl="native")
    reference      regard.attention(..., impl="reference"), only if requested
    sdpa           torch's scaled_dot_product_attention; a trained T5 bias is expanded to a tensor, as torch requires
    flex           torch's FlexAttention, compiled; on a CPU it has no backward pass

Objects that all layers of a model share (masks, block masks, buckets of distances) are made once, and are not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.accuracy import AttentionCall, deviations
from benchmarks.case import Case, Contestant, PreparedCase, Work
from benchmarks.mask_patterns import Window
from benchmarks.peaks import arithmetic_peaks
from benchmarks.problem import Problem, Setting
from benchmarks.targets import Target

LABELS = {
    "native": "regard",
    "native-forward": "regard, without statistics",
    "native-dense": "regard, dense",
    "native-int8": "regard, int8 weights",
    "native-bf16": "regard, bf16",
    "native-fp32": "regard, fp32",
    "reference": "regard, reference",
    "gathered": "torch SDPA, gathered pages",
    "sdpa": "torch SDPA",
    "flex": "torch FlexAttention",
    "torch-linear": "torch",
    "torch-int8": "torch, int8",
    "onednn": "oneDNN",
    "broadcast": "torch, broadcasting",
    "cumulative-sum": "torch, cumulative sum",
    "attention": "regard, exact causal attention",
    "transformers": "transformers",
    "native-part": "regard, attention alone",
    "transformers-eager": "transformers, unfused attention",
    "transformers-part": "transformers, attention alone",
    "transformers-kept": "transformers, freed memory kept",
    "transformers-fp32": "transformers, fp32",
    "static": "transformers, static cache",
    "dynamic": "transformers, dynamic cache",
    "llama.cpp": "llama.cpp, fp16",
    "llama.cpp-threads": "llama.cpp, fp16, its own number of threads",
    "llama.cpp-q8_0": "llama.cpp, Q8_0",
    "llama.cpp-q4_0": "llama.cpp, Q4_0",
    "joeynmt": "JoeyNMT",
    "onnxruntime": "ONNX Runtime",
    "ctranslate2": "CTranslate2",
    "timm": "timm",
    "linformer": "linformer",
    "performer-pytorch": "performer-pytorch",
}
"""Labels of contestants in tables."""

_BLOCK_SIZE = 128
_MAX_BLOCK_MASK_CELLS = 1 << 28  # limit for FlexAttention's create_block_mask


def attention_case(
    name: str, setting: Setting, *, targets: tuple[Target, ...] = (), peers: tuple[str, ...] = ("sdpa",), **place: Any
) -> Case:
    """Make a case of exact attention with the arithmetic peak of its dtype. ``place``: other fields of Case."""

    def prepare() -> PreparedCase:
        problem = Problem(setting)
        work = Work(problem.operations, "GFLOP/s", arithmetic_peaks(setting.dtype))
        return PreparedCase(work, contestants(problem))

    return Case(name, str(setting), prepare, ("native", *peers), targets, **place)


def contestants(problem: Problem) -> dict[str, Callable[[], Contestant]]:
    """Return a maker for each contestant that can solve a problem."""
    makers = {
        "native": partial(regard_attention, problem, "native"),
        "reference": partial(regard_attention, problem, "reference"),
        "sdpa": partial(sdpa, problem),
        "flex": partial(flex, problem),
    }
    return {name: partial(_make_contestant, problem, make) for name, make in makers.items()}


def solve(problem: Problem, attend: AttentionCall) -> object:
    """Solve once, forward or forward and backward: the timed call."""
    if not problem.setting.backward:
        with torch.no_grad():
            return attend()
    return torch.autograd.grad(attend(), list(problem.leaves.values()), problem.grad_output)


def regard_attention(problem: Problem, impl: str) -> AttentionCall:
    """Return regard's attention with the implementation of that name."""
    mask, bias, dropout = problem.setting.pattern.mask(), problem.bias, problem.setting.dropout
    query, key, value = problem.query, problem.key, problem.value

    def attend() -> Tensor:
        return regard.attention(query, key, value, mask=mask, bias=bias, dropout=dropout, impl=impl)

    return attend


def sdpa(problem: Problem) -> AttentionCall:
    """Return torch's scaled_dot_product_attention."""
    query, key, value, setting = problem.query, problem.key, problem.value, problem.setting
    options = setting.pattern.sdpa(problem.keys)
    grouped = problem.key_heads != setting.heads
    dropout, bias = setting.dropout, problem.bias
    if bias is None:
        return lambda: scaled_dot_product_attention(query, key, value, dropout_p=dropout, enable_gqa=grouped, **options)
    assert not options
    buckets = bias.bucket(torch.arange(problem.keys) - torch.arange(setting.queries)[:, None])

    def attend() -> Tensor:
        tensor = torch.nn.functional.embedding(buckets, bias.weight).permute(2, 0, 1)[None]
        return scaled_dot_product_attention(query, key, value, attn_mask=tensor, dropout_p=dropout)

    return attend


def flex(problem: Problem) -> AttentionCall:
    """Return FlexAttention, compiled for these sizes."""
    if problem.setting.backward or problem.setting.dropout or problem.setting.t5:
        raise NotImplementedError("FlexAttention on a CPU has no backward pass, and no dropout")
    query, key, value = problem.query, problem.key, problem.value
    grouped = problem.key_heads != problem.setting.heads
    rule = problem.setting.pattern.flex()
    blocks = None if rule is None else _block_mask(problem)
    kernel = _compile_flex_attention()
    return lambda: kernel(query, key, value, block_mask=blocks, enable_gqa=grouped)


def _make_contestant(problem: Problem, make: Callable[[], AttentionCall]) -> Contestant:
    attend = make()

    def compared() -> list[Any]:
        with torch.set_grad_enabled(problem.setting.backward):
            return list(deviations(problem, attend))

    return Contestant(partial(solve, problem, attend), compared)


@cache
def _compile_flex_attention() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)


def _block_mask(problem: Problem) -> BlockMask:
    """Return the pattern as FlexAttention's block mask.

    If create_block_mask would allocate too many cells, a window's blocks are computed instead.
    """
    queries, keys, pattern = problem.setting.queries, problem.keys, problem.setting.pattern
    rule = pattern.flex()
    assert rule is not None
    if queries * keys <= _MAX_BLOCK_MASK_CELLS:
        return torch.nn.attention.flex_attention.create_block_mask(rule, None, None, queries, keys, device="cpu")
    assert isinstance(pattern, Window)
    assert queries == keys
    first = torch.arange(0, keys, _BLOCK_SIZE)
    nearest, farthest = first - first[:, None] - _BLOCK_SIZE + 1, first - first[:, None] + _BLOCK_SIZE - 1
    some = (farthest >= -pattern.left) & (nearest <= pattern.right)
    full = (nearest >= -pattern.left) & (farthest <= pattern.right)
    lists = [
        (cells.sum(-1, dtype=torch.int32)[None, None], cells.int().argsort(dim=-1, descending=True, stable=True).int())
        for cells in (some & ~full, full)
    ]
    (partial_count, partial_index), (full_count, full_index) = lists
    return BlockMask.from_kv_blocks(
        partial_count, partial_index[None, None], full_count, full_index[None, None], _BLOCK_SIZE, rule, (queries, keys)
    )

"""Decoding: one query against a long cache of keys and values. Most of the time is spent reading them.

    rate = bytes of keys and values / time

A model reads the keys and values of one layer after the other, and all layers together are larger than any CPU cache:
"memory" cases cycle through layers. "cached" cases read one layer repeatedly, if it fits the last-level cache.
"grouped" has 32 query heads for 8 key heads; "paged" reads pages of 64 tokens in any order, in place, beside torch that
gathers them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import kernel_sources
from benchmarks.accuracy import deviations
from benchmarks.attention_baselines import contestants
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.peaks import READ_MEMORY, Peak, read_peak
from benchmarks.problem import DTYPE_NAMES, Problem, Setting
from benchmarks.targets import ShareOfPeak
from regard.mechanisms.page_pool import PagePool
from regard.mechanisms.paged_cache import PagedCache

_KEYS = (4096, 65536)
_BATCHES = (1, 8)
_PLAIN = Setting(torch.float32, 1, keys=4096)
_GROUPED = Setting(torch.float32, 1, keys=4096, heads=32, key_heads=8)
_PAGE_SIZE = 64
_PEAK_SHARE = 0.85
_MIN_BYTES_OF_ALL_LAYERS = 512 << 20
"""Minimum bytes of the key/value caches of all layers, far more than a last-level cache."""
_MAX_CACHED_BYTES = 24 << 20
"""Maximum bytes of a key/value cache that fits the CPU's last-level cache."""


def _case(dtype: torch.dtype, keys: int, batch: int, *, cached: bool, grouped: bool = False) -> Case:
    setting = replace(_GROUPED if grouped else _PLAIN, dtype=dtype, keys=keys, batch=batch)
    return Case(
        f"{DTYPE_NAMES[dtype]} batch-{batch} {keys} {'grouped ' if grouped else ''}{'cached' if cached else 'memory'}",
        str(setting),
        partial(_prepare, setting, cached=cached),
        ("native", "sdpa"),
        (ShareOfPeak(_PEAK_SHARE),),
        quick=batch == 1 and keys == _KEYS[0],
    )


def _prepare(setting: Setting, *, cached: bool) -> PreparedCase:
    first = Problem(setting)
    layers = 1 if cached else -(-_MIN_BYTES_OF_ALL_LAYERS // first.cache_bytes)
    problems = [first, *(Problem(setting, seed=layer) for layer in range(1, layers))]
    peaks: tuple[Peak, ...] = (read_peak(first.cache_bytes), READ_MEMORY) if cached else (READ_MEMORY,)
    makers = [contestants(problem) for problem in problems]
    work = Work(first.cache_bytes, "GB/s", peaks)
    return PreparedCase(work, {name: partial(_cycle_layers, [maker[name] for maker in makers]) for name in makers[0]})


def _paged_case(dtype: torch.dtype, batch: int, *, grouped: bool) -> Case:
    setting = replace(_GROUPED if grouped else _PLAIN, dtype=dtype, batch=batch)
    return Case(
        f"{DTYPE_NAMES[dtype]} batch-{batch} {setting.keys}{' grouped' if grouped else ''} paged",
        f"{setting}, pages of {_PAGE_SIZE} tokens",
        partial(_prepare_paged, setting),
        ("native", "gathered"),
        (ShareOfPeak(_PEAK_SHARE),),
        quick=batch == 1,
    )


def _prepare_paged(setting: Setting) -> PreparedCase:
    problem = Problem(setting)
    work = Work(problem.cache_bytes, "GB/s", (READ_MEMORY,))
    return PreparedCase(work, {name: partial(_paged, problem, name) for name in ("native", "gathered")})


def _paged(first: Problem, name: str) -> Contestant:
    """Make a contestant that attends to the pages of the next layer in each call."""
    layers = -(-_MIN_BYTES_OF_ALL_LAYERS // first.cache_bytes)
    problems = [first, *(Problem(first.setting, seed=layer) for layer in range(1, layers))]
    attend = {"native": _attend_to_pages, "gathered": _attend_to_gathered}[name]
    layers_calls = [partial(attend, problem.query, _make_pages(problem)) for problem in problems]
    calls = cycle(layers_calls)
    return Contestant(lambda: next(calls)(), lambda: list(deviations(first, layers_calls[0])))


def _make_pages(problem: Problem) -> PagedCache:
    """Write keys and values into pages, one page of each sequence after the other, so that a sequence's lie apart."""
    pool = PagePool(problem.key_heads, problem.setting.head_dim, page_size=_PAGE_SIZE, dtype=problem.setting.dtype)
    cache = PagedCache.empty(pool, problem.setting.batch)
    for start in range(0, problem.keys, _PAGE_SIZE):
        tokens = slice(start, start + _PAGE_SIZE)
        cache = cache.extended(problem.key[:, :, tokens], problem.value[:, :, tokens])
    return cache


def _attend_to_pages(query: Tensor, cache: PagedCache) -> Tensor:
    return cache.attention(query, impl="native")


def _attend_to_gathered(query: Tensor, cache: PagedCache) -> Tensor:
    paged = cache._make_paged()
    pages = paged.page_table.long()
    keys, values = (side[pages].transpose(1, 2).flatten(2, 3) for side in (paged.key_pages, paged.value_pages))
    return scaled_dot_product_attention(query, keys, values, enable_gqa=query.shape[1] != keys.shape[1])


def _cycle_layers(makers: list[Callable[[], Contestant]]) -> Contestant:
    """Make a contestant that solves the next layer's problem in each call."""
    layers = [make() for make in makers]
    calls = cycle([layer.run for layer in layers])
    return Contestant(lambda: next(calls)(), layers[0].deviations)


def _cache_bytes(dtype: torch.dtype, keys: int, batch: int) -> int:
    return 2 * batch * 8 * keys * 64 * dtype.itemsize


SUITE = Suite(
    name="decode",
    title="Decoding",
    description="One query and a long cache of keys and values, compared with the rate of reading memory.",
    cases=(
        *(
            _case(dtype, keys, batch, cached=cached)
            for dtype in (torch.float32, torch.bfloat16)
            for batch in _BATCHES
            for keys in _KEYS
            for cached in (False, True)
            if not cached or _cache_bytes(dtype, keys, batch) <= _MAX_CACHED_BYTES
        ),
        *(_case(torch.float16, keys, 1, cached=False) for keys in _KEYS),
        *(
            _case(dtype, keys, 1, cached=False, grouped=True)
            for dtype in (torch.float32, torch.bfloat16)
            for keys in _KEYS
        ),
        *(_paged_case(torch.bfloat16, batch, grouped=grouped) for batch in _BATCHES for grouped in (False, True)),
    ),
    notes=(
        "memory: each call reads the keys and values of another layer, and all layers together are larger than any CPU "
        "cache. The peak is the rate of reading memory.",
        "cached: all calls read the same keys and values, which fit the last-level cache. The peak is the rate of "
        "reading a buffer of that size repeatedly.",
        "grouped: 32 query heads and 8 key heads. paged: the tokens of a sequence lie in pages of 64, between those of "
        "the others; regard reads them in place, and for torch they are gathered in each call.",
    ),
    kernels=(*kernel_sources.FEW_QUERIES, "decode/paged.cpp"),
)

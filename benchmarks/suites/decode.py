"""Decoding: one query against a long cache of keys and values. Most of the time is spent reading them.

    rate = bytes of keys and values / time

A model reads the keys and values of one layer after the other, and all layers together are larger than any CPU cache:
"memory" cases cycle through layers. "cached" cases read one layer repeatedly, if it fits the last-level cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch

from benchmarks.attention_baselines import contestants
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.peaks import READ_MEMORY, Peak, read_peak
from benchmarks.problem import DTYPE_NAMES, Problem, Setting
from benchmarks.targets import ShareOfPeak

_KEYS = (4096, 65536)
_BATCHES = (1, 8)
_PEAK_SHARE = 0.85
_MIN_BYTES_OF_ALL_LAYERS = 512 << 20
"""Minimum bytes of the key/value caches of all layers, far more than a last-level cache."""
_MAX_CACHED_BYTES = 24 << 20
"""Maximum bytes of a key/value cache that fits the CPU's last-level cache."""


def _case(dtype: torch.dtype, keys: int, batch: int, *, cached: bool) -> Case:
    setting = Setting(dtype, 1, keys=keys, batch=batch)
    return Case(
        f"{DTYPE_NAMES[dtype]} batch-{batch} {keys} {'cached' if cached else 'memory'}",
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
    cases=tuple(
        _case(dtype, keys, batch, cached=cached)
        for dtype in (torch.float32, torch.bfloat16)
        for batch in _BATCHES
        for keys in _KEYS
        for cached in (False, True)
        if not cached or _cache_bytes(dtype, keys, batch) <= _MAX_CACHED_BYTES
    ),
    notes=(
        "memory: each call reads the keys and values of another layer, and all layers together are larger than any CPU "
        "cache. The peak is the rate of reading memory.",
        "cached: all calls read the same keys and values, which fit the last-level cache. The peak is the rate of "
        "reading a buffer of that size repeatedly.",
    ),
)

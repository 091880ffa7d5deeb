"""Caches are immutable across threads: a thread's change to a shared cache is not visible to another thread."""

import copy
import pickle

import pytest
import torch

from interleaved_threads import run_interleaved
from regard.layers import KeyValueCache, PagedCache, PagePool


@pytest.fixture(autouse=True)
def _without_shape_checks(without_shape_checks) -> None:
    """Disable the suite's shape checks, which take longer than the code under test."""


def distinct_tensor(thread: int, step: int, batch: int = 1):
    """One token, as (batch, 1, 1, 2) keys and values that identify its writer."""
    token = torch.tensor([float(thread), float(step)]).expand(batch, 1, 1, 2).contiguous()
    return token, token + 0.5


def test_threads_may_share_a_pool():
    pool, wrong = PagePool(1, 2, page_size=2), []

    def decode(thread):
        try:
            cache = PagedCache.empty(pool, 1)
            for step in range(4):
                cache = cache.extended(*distinct_tensor(thread, step))
            steps = torch.arange(4.0)
            expected = torch.stack([torch.full_like(steps, thread), steps], dim=1)[None, None]
            key, value = cache.tokens(0)
            wrong.extend([] if torch.equal(key, expected) and torch.equal(value, expected + 0.5) else [key])
        except Exception as error:
            wrong.append(error)

    run_interleaved(decode, 4, files=("mechanisms/page_pool.py", "mechanisms/paged_cache.py"))
    assert wrong == []
    assert pool.free == pool.pages
    assert sorted(pool._free_indices) == list(range(pool.pages))


def test_threads_may_extend_one_paged_cache():
    pool, extended, wrong = PagePool(1, 2, page_size=4), {}, []
    root = PagedCache.empty(pool, 1).extended(*distinct_tensor(9, 9))

    def extend(thread):
        try:
            extended[thread] = root.extended(*distinct_tensor(thread, 1))
        except Exception as error:
            wrong.append(error)

    run_interleaved(extend, 4, files=("mechanisms/page_pool.py", "mechanisms/paged_cache.py"))
    assert wrong == []
    for thread, cache in extended.items():
        assert cache.tokens(0)[0][0, 0].tolist() == [[9, 9], [thread, 1]]


def test_threads_may_extend_one_cache():
    with torch.no_grad():
        root = KeyValueCache.empty().extended(*distinct_tensor(8, 8)).extended(*distinct_tensor(9, 9))
    extended, wrong = {}, []

    def extend(thread):
        try:
            with torch.no_grad():
                extended[thread] = root.extended(*distinct_tensor(thread, 1))
        except Exception as error:
            wrong.append(error)

    run_interleaved(extend, 4, files=("mechanisms/key_value_cache.py",))
    assert wrong == []
    for thread, cache in extended.items():
        assert cache.key[0, 0].tolist() == [[8, 8], [9, 9], [thread, 1]]
        assert cache.value[0, 0].tolist() == [[8.5, 8.5], [9.5, 9.5], [thread + 0.5, 1.5]]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_copy_of_a_paged_cache_has_its_own_pool(copied):
    cache = PagedCache.empty(PagePool(1, 2, page_size=2), 1).extended(*distinct_tensor(3, 5))
    other = copied(cache)
    grown, theirs = cache.extended(*distinct_tensor(3, 6)), other.extended(*distinct_tensor(7, 7))
    assert grown.tokens(0)[0][0, 0].tolist() == [[3, 5], [3, 6]]
    assert theirs.tokens(0)[0][0, 0].tolist() == [[3, 5], [7, 7]]
    del other, theirs
    assert grown.tokens(0)[0][0, 0].tolist() == [[3, 5], [3, 6]]

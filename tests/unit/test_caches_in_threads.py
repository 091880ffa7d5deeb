"""Caches are values in threads too: what one thread does to a cache it shares is not seen by another."""

import copy
import pickle

import pytest
import torch

from in_threads import in_threads
from regard.layers import KeyValueCache, PagedCache, PagePool


@pytest.fixture(autouse=True)
def _as_users_call(as_users_call) -> None:
    """The suite's shape checks take longer than what is raced here."""


def told_apart(thread: int, step: int, batch: int = 1):
    """One token, as (batch, 1, 1, 2) keys and values that say who wrote it."""
    token = torch.tensor([float(thread), float(step)]).expand(batch, 1, 1, 2).contiguous()
    return token, token + 0.5


def test_threads_may_share_a_pool():
    pool, wrong = PagePool(1, 2, page_size=2), []

    def decode(thread):
        try:
            cache = PagedCache.empty(pool, 1)
            for step in range(4):
                cache = cache.extended(*told_apart(thread, step))
            steps = torch.arange(4.0)
            expected = torch.stack([torch.full_like(steps, thread), steps], dim=1)[None, None]
            key, value = cache.tokens(0)
            wrong.extend([] if torch.equal(key, expected) and torch.equal(value, expected + 0.5) else [key])
        except Exception as error:
            wrong.append(error)

    in_threads(decode, 4, files=("mechanisms/page_pool.py", "mechanisms/paged_cache.py"))
    assert wrong == []
    assert pool.free == pool.pages
    assert sorted(pool._free) == list(range(pool.pages))


def test_threads_may_extend_one_paged_cache():
    pool, extended, wrong = PagePool(1, 2, page_size=4), {}, []
    root = PagedCache.empty(pool, 1).extended(*told_apart(9, 9))

    def extend(thread):
        try:
            extended[thread] = root.extended(*told_apart(thread, 1))
        except Exception as error:
            wrong.append(error)

    in_threads(extend, 4, files=("mechanisms/page_pool.py", "mechanisms/paged_cache.py"))
    assert wrong == []
    for thread, cache in extended.items():
        assert cache.tokens(0)[0][0, 0].tolist() == [[9, 9], [thread, 1]]


def test_threads_may_extend_one_cache():
    with torch.no_grad():
        root = KeyValueCache.empty().extended(*told_apart(8, 8)).extended(*told_apart(9, 9))
    extended, wrong = {}, []

    def extend(thread):
        try:
            with torch.no_grad():
                extended[thread] = root.extended(*told_apart(thread, 1))
        except Exception as error:
            wrong.append(error)

    in_threads(extend, 4, files=("mechanisms/key_value_cache.py",))
    assert wrong == []
    for thread, cache in extended.items():
        assert cache.key[0, 0].tolist() == [[8, 8], [9, 9], [thread, 1]]
        assert cache.value[0, 0].tolist() == [[8.5, 8.5], [9.5, 9.5], [thread + 0.5, 1.5]]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_a_copy_of_a_paged_cache_has_a_pool_of_its_own(copied):
    cache = PagedCache.empty(PagePool(1, 2, page_size=2), 1).extended(*told_apart(3, 5))
    other = copied(cache)
    grown, theirs = cache.extended(*told_apart(3, 6)), other.extended(*told_apart(7, 7))
    assert grown.tokens(0)[0][0, 0].tolist() == [[3, 5], [3, 6]]
    assert theirs.tokens(0)[0][0, 0].tolist() == [[3, 5], [7, 7]]
    del other, theirs
    assert grown.tokens(0)[0][0, 0].tolist() == [[3, 5], [3, 6]]

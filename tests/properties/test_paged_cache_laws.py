"""After any sequence of operations, each paged cache contains what a plain list of its tokens contains.

A program of random steps makes caches from caches: more tokens, forks, joins, and dropped caches. For each cache a
plain list of the tokens of its sequences is maintained. After each step

    every cache     gives the tokens of its list, and in the end the attention that plain tensors give
    the pool        counts each of its pages as free or as held by a living cache, never as both, and once
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard
from hypothesis_examples import examples
from regard import masks
from regard.layers import KeyValueCache, PagedCache, PagePool

KEY_HEADS, HEAD_DIM, VALUE_DIM, NEW, MOST = 2, 3, 5, 6, 8


class CacheAndTokens(NamedTuple):
    """A cache, and its expected contents: (key_heads, length, head_dim + value_dim) of each sequence."""

    cache: PagedCache
    tokens: list[Tensor]


which = st.sampled_from([0, 0, 0, 1, 2, 5])  # a cache, counted from the newest
numbers = st.lists(st.integers(0, 7), min_size=MOST, max_size=MOST)
steps = st.lists(
    st.tuples(st.sampled_from(["extend", "extend", "fork", "fork", "reorder", "join", "drop"]), which, numbers),
    min_size=2,
    max_size=10,
)


def random_tensor(batch: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, KEY_HEADS, length, HEAD_DIM + VALUE_DIM, generator=generator, dtype=torch.float64)


def sides(tokens: Tensor) -> tuple[Tensor, Tensor]:
    return tokens[..., :HEAD_DIM], tokens[..., HEAD_DIM:]


def extend(held: CacheAndTokens, counts: list[int], seed: int) -> CacheAndTokens:
    batch = held.cache.batch
    new, counts = random_tensor(batch, NEW, seed), [count % (NEW + 1) for count in counts[:batch]]
    longer = [torch.cat([old, more[:, :count]], 1) for old, more, count in zip(held.tokens, new, counts, strict=True)]
    return CacheAndTokens(held.cache.extended(*sides(new), counts), longer)


def reorder(held: CacheAndTokens, numbers: list[int]) -> CacheAndTokens:
    batch = held.cache.batch
    entries = [number % (2 * batch) - batch for number in numbers[1:]][: numbers[0]] if batch else []
    return CacheAndTokens(held.cache.reordered(entries), [held.tokens[entry] for entry in entries])


def join(held: CacheAndTokens, other: CacheAndTokens) -> CacheAndTokens:
    if held.cache.batch + other.cache.batch > MOST:
        return held
    return CacheAndTokens(held.cache.joined(other.cache), held.tokens + other.tokens)


def check_contents(held: CacheAndTokens) -> None:
    assert held.cache.lengths == tuple(tokens.shape[1] for tokens in held.tokens)
    for entry, tokens in enumerate(held.tokens):
        for ours, theirs in zip(held.cache.tokens(entry), sides(tokens), strict=True):
            assert torch.equal(ours[0], theirs)


def check_pool(pool: PagePool, alive: list[CacheAndTokens]) -> None:
    taken = {page.index for held in alive for pages in held.cache._pages for page in pages}
    assert sorted([*taken, *pool._free_indices]) == list(range(pool.pages))


def check_attention(held: CacheAndTokens) -> None:
    batch = held.cache.batch
    query = torch.randn(batch, 2 * KEY_HEADS, 2, HEAD_DIM, dtype=torch.float64)
    ours = held.cache.attention(query, mask=masks.causal())
    for entry, tokens in enumerate(held.tokens):
        one = query[entry : entry + 1]
        theirs = regard.attention(one, *sides(tokens[None]), mask=masks.causal(), impl="reference")
        torch.testing.assert_close(ours[entry : entry + 1], theirs, rtol=0, atol=1e-12)


@examples(100)
@given(program=steps, page_size=st.sampled_from([1, 2, 3, 5, 7, 64]), batch=st.integers(1, 3), inference=st.booleans())
def test_caches_hold_what_plain_lists_hold(program, page_size: int, batch: int, inference: bool) -> None:
    pool = PagePool(KEY_HEADS, HEAD_DIM, VALUE_DIM, page_size=page_size, dtype=torch.float64)
    alive = [CacheAndTokens(PagedCache.empty(pool, batch), list(random_tensor(batch, 0, 0)))]
    with torch.inference_mode(inference):
        for seed, (kind, number, what) in enumerate(program):
            chosen = len(alive) - 1 - number % len(alive)
            if kind == "extend":
                alive.append(extend(alive[chosen], what, seed))
            elif kind == "fork":
                alive.append(extend(reorder(alive[chosen], what), what[::-1], seed))
            elif kind == "reorder":
                alive.append(reorder(alive[chosen], what))
            elif kind == "join":
                alive.append(join(alive[chosen], alive[what[0] % len(alive)]))
            elif len(alive) > 1:
                del alive[chosen]
            for held in alive:
                check_contents(held)
            del held
            check_pool(pool, alive)
    for held in alive:
        check_attention(held)
    del alive, held
    assert pool.free == pool.pages


@examples(30)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5), page_size=st.integers(1, 5))
def test_with_one_length_it_holds_what_a_plain_cache_holds(lengths: list[int], page_size: int) -> None:
    pool = PagePool(KEY_HEADS, HEAD_DIM, VALUE_DIM, page_size=page_size, dtype=torch.float64)
    paged, plain = PagedCache.empty(pool, 2), KeyValueCache.empty()
    with torch.no_grad():
        for seed, length in enumerate(lengths):
            new = sides(random_tensor(2, length, seed))
            paged, plain = paged.extended(*new), plain.extended(*new)
    assert paged.lengths == (plain.length, plain.length)
    for entry in range(2):
        key, value = paged.tokens(entry)
        assert torch.equal(key, plain.key[entry : entry + 1])
        assert torch.equal(value, plain.value[entry : entry + 1])
    assert pool.pages - pool.free == 2 * -(-plain.length // page_size)

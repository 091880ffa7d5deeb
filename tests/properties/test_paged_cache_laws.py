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


def split_key_value(tokens: Tensor) -> tuple[Tensor, Tensor]:
    return tokens[..., :HEAD_DIM], tokens[..., HEAD_DIM:]


def extend(branch: CacheAndTokens, counts: list[int], seed: int) -> CacheAndTokens:
    batch = branch.cache.batch
    new, counts = random_tensor(batch, NEW, seed), [count % (NEW + 1) for count in counts[:batch]]
    longer = [torch.cat([old, more[:, :count]], 1) for old, more, count in zip(branch.tokens, new, counts, strict=True)]
    return CacheAndTokens(branch.cache.extended(*split_key_value(new), counts), longer)


def reorder(branch: CacheAndTokens, numbers: list[int]) -> CacheAndTokens:
    batch = branch.cache.batch
    entries = [number % (2 * batch) - batch for number in numbers[1:]][: numbers[0]] if batch else []
    return CacheAndTokens(branch.cache.reordered(entries), [branch.tokens[entry] for entry in entries])


def join(branch: CacheAndTokens, other: CacheAndTokens) -> CacheAndTokens:
    if branch.cache.batch + other.cache.batch > MOST:
        return branch
    return CacheAndTokens(branch.cache.joined(other.cache), branch.tokens + other.tokens)


def check_contents(branch: CacheAndTokens) -> None:
    assert branch.cache.lengths == tuple(tokens.shape[1] for tokens in branch.tokens)
    for entry, tokens in enumerate(branch.tokens):
        for ours, theirs in zip(branch.cache.tokens(entry), split_key_value(tokens), strict=True):
            assert torch.equal(ours[0], theirs)


def check_pool(pool: PagePool, branches: list[CacheAndTokens]) -> None:
    taken = {page.index for branch in branches for pages in branch.cache._pages for page in pages}
    assert sorted([*taken, *pool._free_indices]) == list(range(pool.pages))


def check_attention(branch: CacheAndTokens) -> None:
    batch = branch.cache.batch
    query = torch.randn(batch, 2 * KEY_HEADS, 2, HEAD_DIM, dtype=torch.float64)
    ours = branch.cache.attention(query, mask=masks.causal())
    for entry, tokens in enumerate(branch.tokens):
        one = query[entry : entry + 1]
        theirs = regard.attention(one, *split_key_value(tokens[None]), mask=masks.causal(), impl="reference")
        torch.testing.assert_close(ours[entry : entry + 1], theirs, rtol=0, atol=1e-12)


@examples(100)
@given(program=steps, page_size=st.sampled_from([1, 2, 3, 5, 7, 64]), batch=st.integers(1, 3), inference=st.booleans())
def test_paged_caches_contain_the_tokens_of_plain_lists(program, page_size: int, batch: int, inference: bool) -> None:
    pool = PagePool(KEY_HEADS, HEAD_DIM, VALUE_DIM, page_size=page_size, dtype=torch.float64)
    branches = [CacheAndTokens(PagedCache.empty(pool, batch), list(random_tensor(batch, 0, 0)))]
    with torch.inference_mode(inference):
        for seed, (kind, number, arguments) in enumerate(program):
            chosen = len(branches) - 1 - number % len(branches)
            if kind == "extend":
                branches.append(extend(branches[chosen], arguments, seed))
            elif kind == "fork":
                branches.append(extend(reorder(branches[chosen], arguments), arguments[::-1], seed))
            elif kind == "reorder":
                branches.append(reorder(branches[chosen], arguments))
            elif kind == "join":
                branches.append(join(branches[chosen], branches[arguments[0] % len(branches)]))
            elif len(branches) > 1:
                del branches[chosen]
            for branch in branches:
                check_contents(branch)
            del branch
            check_pool(pool, branches)
    for branch in branches:
        check_attention(branch)
    del branches, branch
    assert pool.free == pool.pages


@examples(30)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5), page_size=st.integers(1, 5))
def test_equal_lengths_give_the_contents_of_a_plain_cache(lengths: list[int], page_size: int) -> None:
    pool = PagePool(KEY_HEADS, HEAD_DIM, VALUE_DIM, page_size=page_size, dtype=torch.float64)
    paged, plain = PagedCache.empty(pool, 2), KeyValueCache.empty()
    with torch.no_grad():
        for seed, length in enumerate(lengths):
            new = split_key_value(random_tensor(2, length, seed))
            paged, plain = paged.extended(*new), plain.extended(*new)
    assert paged.lengths == (plain.length, plain.length)
    for entry in range(2):
        key, value = paged.tokens(entry)
        assert torch.equal(key, plain.key[entry : entry + 1])
        assert torch.equal(value, plain.value[entry : entry + 1])
    assert pool.pages - pool.free == 2 * -(-plain.length // page_size)

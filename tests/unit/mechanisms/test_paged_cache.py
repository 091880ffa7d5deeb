"""Paged caches through the public API: forks, limits, freed memory, errors and their messages."""

import pytest
import torch

import regard
from regard import masks
from regard.errors import DeviceError, DtypeError, OptionError, RefusedError, ShapeError
from regard.layers import PagedCache, PagePool

KEY_HEADS, HEADS, HEAD_DIM, VALUE_DIM = 2, 6, 3, 5


@pytest.fixture(autouse=True)
def _without_shape_checks(without_shape_checks) -> None:
    """Disable the suite's shape checks, so that the package raises its own errors."""


def make_pool(**options) -> PagePool:
    return PagePool(KEY_HEADS, HEAD_DIM, VALUE_DIM, **{"page_size": 4, **options})


def tokens(batch: int, length: int):
    return torch.randn(batch, KEY_HEADS, length, HEAD_DIM), torch.randn(batch, KEY_HEADS, length, VALUE_DIM)


def make_cache(pool: PagePool, lengths: list[int]) -> PagedCache:
    return PagedCache.empty(pool, len(lengths)).extended(*tokens(len(lengths), max(lengths)), lengths)


def random_query(batch: int, queries: int = 1):
    return torch.randn(batch, HEADS, queries, HEAD_DIM)


# ---- forks ----


@pytest.mark.parametrize("length", [3, 4, 5])
def test_beams_copy_only_the_page_where_they_diverge(length):
    """As in beam search: three beams of one sequence, then two of one of these."""
    pool = make_pool()
    root = make_cache(pool, [length])
    beams = root.reordered([0, 0, 0])
    assert pool.pages - pool.free == -(-length // 4)
    key, value = tokens(3, 1)
    extended = beams.extended(key, value)
    # each has its own last page, new or a copy, except for one that continues in the old page
    assert pool.pages - pool.free == (length // 4) + 3
    before = root.tokens(0)
    for entry in range(3):
        ours = extended.tokens(entry)
        assert torch.equal(ours[0], torch.cat([before[0], key[entry : entry + 1]], 2))
        assert torch.equal(ours[1], torch.cat([before[1], value[entry : entry + 1]], 2))
    again = extended.reordered(torch.tensor([2, 2])).extended(*tokens(2, 2))
    assert torch.equal(again.tokens(0)[0][:, :, :-2], again.tokens(1)[0][:, :, :-2])
    assert not torch.equal(again.tokens(0)[0], again.tokens(1)[0])
    assert torch.equal(root.tokens(0)[0], before[0])


def test_earlier_cache_is_unchanged():
    root = make_cache(make_pool(), [2, 6])
    before = [root.tokens(entry) for entry in range(2)]
    one, other = root.extended(*tokens(2, 3)), root.extended(*tokens(2, 3))
    for entry in range(2):
        assert torch.equal(root.tokens(entry)[0], before[entry][0])
        assert torch.equal(root.tokens(entry)[1], before[entry][1])
        assert not torch.equal(one.tokens(entry)[0], other.tokens(entry)[0])


def test_extending_by_no_tokens_does_not_overwrite_another_branch():
    root = make_cache(make_pool(), [2])
    extended = root.extended(*tokens(1, 1))
    before = extended.tokens(0)[0]
    root.extended(*tokens(1, 1), lengths=[0]).extended(*tokens(1, 1))
    assert torch.equal(extended.tokens(0)[0], before)


def test_extending_by_some_or_none_of_the_new_tokens():
    cache = make_cache(make_pool(), [1, 4]).extended(*tokens(2, 3), lengths=torch.tensor([0, 2]))
    assert cache.lengths == (1, 6)
    assert cache.extended(*tokens(2, 0)).lengths == (1, 6)


# ---- memory ----


def test_pages_are_freed_with_their_caches():
    pool = make_pool()
    one = make_cache(pool, [5, 9])
    other = one.extended(*tokens(2, 4))
    assert pool.pages - pool.free == 3 + 4
    del one
    assert pool.pages - pool.free == 3 + 4
    del other
    assert pool.free == pool.pages


def test_growing_pool_keeps_its_contents():
    pool = make_pool()
    cache = make_cache(pool, [7])
    before, small = cache.tokens(0), pool.pages
    more = make_cache(pool, [4 * small])
    assert pool.pages >= small + 2
    assert torch.equal(cache.tokens(0)[0], before[0])
    assert torch.equal(cache.tokens(0)[1], before[1])
    assert more.lengths == (4 * small,)


def test_full_pool_refuses_and_changes_nothing():
    pool = make_pool(limit=3)
    cache = make_cache(pool, [5, 1])
    assert repr(pool) == "PagePool(3 pages of 4 tokens, 0 free, limit=3)"
    before = cache.tokens(0)[0]
    with pytest.raises(RefusedError, match=r"(?s)pool of pages is full.*at most 3 pages of 4 tokens.*4 needed.*limit"):
        cache.extended(*tokens(2, 4), lengths=[0, 4])
    assert (cache.lengths, pool.free) == ((5, 1), 0)
    assert torch.equal(cache.tokens(0)[0], before)
    cache = cache.extended(*tokens(2, 3))  # as many tokens as the pages have room for
    assert cache.lengths == (8, 4)
    cache = cache.reordered([1])
    assert pool.free == 2
    assert cache.extended(*tokens(1, 8)).lengths == (12,)


# ---- attention ----


@pytest.mark.parametrize(
    "mask", [None, masks.causal(), masks.window(2, 0), masks.causal() & masks.window(1, 1), masks.global_tokens([0])]
)
@pytest.mark.parametrize("impl", ["auto", "reference", "sdpa"])
def test_attention_equals_that_of_each_sequence(impl, mask):
    cache, query = make_cache(make_pool(), [3, 1, 9]), random_query(3, 2)
    ours = cache.attention(query, mask=mask, scale=0.3, impl=impl)
    assert ours.shape == (3, HEADS, 2, VALUE_DIM)
    for entry in range(3):
        one = query[entry : entry + 1]
        theirs = regard.attention(one, *cache.tokens(entry), mask=mask, scale=0.3, impl="reference")
        torch.testing.assert_close(ours[entry : entry + 1], theirs, rtol=0, atol=1e-6)


def test_sizes_of_0():
    cache = PagedCache.empty(make_pool(), 2)
    for impl in ("auto", "reference"):
        assert not cache.attention(random_query(2), impl=impl).any()
        assert cache.reordered([]).attention(random_query(0), impl=impl).shape == (0, HEADS, 1, VALUE_DIM)
        assert cache.attention(random_query(2, 0), impl=impl).shape == (2, HEADS, 0, VALUE_DIM)


def test_gradient_of_the_query():
    cache, query = make_cache(make_pool(), [3, 7]), random_query(2).requires_grad_()
    (ours,) = torch.autograd.grad(cache.attention(query).square().sum(), query)
    whole = [regard.attention(query[entry : entry + 1], *cache.tokens(entry)).square().sum() for entry in range(2)]
    (theirs,) = torch.autograd.grad(sum(whole), query)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_many_query_heads_per_key_head():
    cache = make_cache(make_pool(), [5])
    query = torch.randn(1, 65 * KEY_HEADS, 1, HEAD_DIM)
    theirs = regard.attention(query, *cache.tokens(0), impl="reference")
    torch.testing.assert_close(cache.attention(query, impl="native"), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mask": masks.padding([3, 4])}, r"causal\(\) and window\(\.\.\.\), and this is padding"),
        ({"mask": masks.causal(align="start")}, r"this is causal\(align='start'\)"),
        ({"query": random_query(2).requires_grad_()}, "no gradients through a paged cache"),
    ],
)
def test_native_refuses_with_a_reason(options, reason):
    cache = make_cache(make_pool(), [3, 4])
    with pytest.raises(RefusedError, match=f"(?s)impl 'native' refuses: .*{reason}"):
        cache.attention(**{"query": random_query(2), "impl": "native"} | options)


def test_head_dims_beyond_the_kernels_limit():
    pool = PagePool(1, 641, page_size=4)
    cache = PagedCache.empty(pool, 1).extended(torch.randn(1, 1, 5, 641), torch.randn(1, 1, 5, 641))
    query = torch.randn(1, 1, 1, 641)
    torch.testing.assert_close(cache.attention(query), regard.attention(query, *cache.tokens(0)))
    with pytest.raises(RefusedError, match="at most 640"):
        cache.attention(query, impl="native")


# ---- refusals ----


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda cache: cache.extended(*tokens(3, 1)), ShapeError, r"\(2, 2, new, 3\).*\(3, 2, 1, 3\)"),
        (lambda cache: cache.extended(tokens(2, 1)[0], tokens(2, 2)[1]), ShapeError, "as many new tokens"),
        (lambda cache: cache.extended(*(side[0] for side in tokens(2, 1))), ShapeError, "does not fit"),
        (lambda cache: cache.extended(*(side.double() for side in tokens(2, 1))), DtypeError, "torch.float64"),
        (lambda cache: cache.extended(*(side.to("meta") for side in tokens(2, 1))), DeviceError, "meta"),
        (lambda cache: cache.extended(3, 4), DtypeError, "key is not a tensor"),
        (lambda cache: cache.extended(*(side.requires_grad_() for side in tokens(2, 1))), RefusedError, "no_grad"),
        (lambda cache: cache.extended(*tokens(2, 3), [1]), OptionError, "2 integers from 0 to 3"),
        (lambda cache: cache.extended(*tokens(2, 3), [1, 4]), OptionError, "2 integers from 0 to 3"),
        (lambda cache: cache.extended(*tokens(2, 3), [1, -1]), OptionError, "2 integers from 0 to 3"),
        (lambda cache: cache.extended(*tokens(2, 3), torch.tensor([1.0, 2.0])), OptionError, "2 integers"),
        (lambda cache: cache.extended(*tokens(2, 3), 2), OptionError, "2 integers"),
        (lambda cache: cache.reordered([2]), OptionError, "integers from -2 to 1"),
        (lambda cache: cache.reordered(torch.tensor(0)), OptionError, "integers from -2 to 1"),
        (lambda cache: cache.reordered([True, False]), OptionError, "integers from -2 to 1"),
        (lambda cache: cache.reordered("ab"), OptionError, "integers from -2 to 1"),
        (lambda cache: cache.tokens(2), OptionError, "integers from -2 to 1"),
        (lambda cache: cache.joined(PagedCache.empty(make_pool(), 1)), OptionError, "different pools"),
        (lambda cache: cache.attention(random_query(3)), ShapeError, "query does not fit the paged cache"),
        (lambda cache: cache.attention(random_query(2)[:, :5]), ShapeError, "heads a multiple of 2"),
        (lambda cache: cache.attention(random_query(2)[0]), ShapeError, "query does not fit"),
        (lambda cache: cache.attention(random_query(2).half()), DtypeError, "torch.float16"),
        (lambda cache: cache.attention([1.0]), DtypeError, "query is not a tensor"),
        (
            lambda cache: cache.attention(random_query(2), mask=torch.ones(1, dtype=torch.bool)),
            OptionError,
            "not a regard",
        ),
        (lambda cache: cache.attention(random_query(2), scale=float("nan")), OptionError, "finite number"),
        (lambda cache: cache.attention(random_query(2), impl="natve"), OptionError, "did you mean 'native'"),
        (lambda cache: PagedCache.empty(cache, 1), OptionError, "pool is not a PagePool"),
        (lambda cache: PagedCache.empty(cache.pool, -1), OptionError, "wrong batch"),
        (lambda cache: make_pool(page_size=0), OptionError, "wrong page_size"),
        (lambda cache: make_pool(limit=0), OptionError, "wrong limit"),
        (lambda cache: make_pool(dtype=torch.int32), DtypeError, "floating-point"),
    ],
)
def test_invalid_calls_are_refused(call, error, message):
    cache = make_cache(make_pool(), [3, 4])
    with pytest.raises(error, match=f"(?s){message}"):
        call(cache)
    assert (cache.lengths, cache.pool.pages - cache.pool.free) == ((3, 4), 2)

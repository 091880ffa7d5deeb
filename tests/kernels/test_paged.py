"""The native kernel for paged keys and values: against the float64 oracle, and bit for bit against plain tensors.

Inputs are multiples of 1/16 below 8, which every dtype represents exactly. The sequences of a batch have different
lengths, their pages are in random order, and memory that no sequence refers to is NaN.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from any_threads import assert_same_bits
from kernels.opcheck_cases import parametrize_opcheck
from regard import masks
from regard.conformance.oracles import attention as oracle
from regard.kernels import extension
from regard.kernels.operators import paged_attention_op
from regard.kernels.operators.kernel_arguments import KernelArguments
from regard.kernels.operators.paged_attention_op import PagedKeysValues
from sixteenths import sixteenths

KEY_HEADS, HEAD_DIM, VALUE_DIM = 3, 5, 11
pytestmark = pytest.mark.usefixtures("without_shape_checks")  # which take longer than the kernels
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
LENGTHS = [0, 1, 63, 64, 65, 511, 512, 513, 1025]


def sequences(
    lengths: list[int], key_heads: int = KEY_HEADS, value_dim: int = VALUE_DIM
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Keys (1, key_heads, length, head_dim) and values of each sequence."""
    return [
        (
            sixteenths(1, key_heads, length, HEAD_DIM, seed=2 * entry + 1),
            sixteenths(1, key_heads, length, value_dim, seed=2 * entry + 2),
        )
        for entry, length in enumerate(lengths)
    ]


def store_in_pages(
    inputs: list[tuple[np.ndarray, np.ndarray]],
    page_size: int,
    dtype: torch.dtype,
    *,
    table_dtype: torch.dtype = torch.int32,
    spare: int = 3,
) -> PagedKeysValues:
    """Store the sequences in shuffled pages, with spare pages; table entries after a sequence's pages name none."""
    lengths = [key.shape[2] for key, _ in inputs]
    counts = [-(-length // page_size) for length in lengths]
    pages, table_width, key_heads = sum(counts) + spare, max(counts, default=0) + 2, inputs[0][0].shape[1]
    order = iter(np.random.default_rng(pages).permutation(pages).tolist())
    key_pages = torch.full((pages, key_heads, page_size, HEAD_DIM), torch.nan, dtype=dtype)
    value_pages = torch.full((pages, key_heads, page_size, inputs[0][1].shape[3]), torch.nan, dtype=dtype)
    table = torch.full((len(inputs), table_width), 2**31 - 1, dtype=table_dtype)
    for entry, (key, value) in enumerate(inputs):
        for number in range(counts[entry]):
            table[entry, number] = page = next(order)
            rows = slice(number * page_size, (number + 1) * page_size)
            for into, tokens in ((key_pages, key), (value_pages, value)):
                part = torch.from_numpy(tokens[0, :, rows]).to(dtype)
                into[page, :, : part.shape[1]] = part
    return PagedKeysValues(key_pages, value_pages, table, torch.tensor(lengths, dtype=torch.int64))


def attend(query: Tensor, inputs: PagedKeysValues, **options) -> Tensor:
    return paged_attention_op.paged_attention(query, inputs, KernelArguments(scale=HEAD_DIM**-0.5, **options))


def assert_close(ours: Tensor, exact: np.ndarray, terms: int) -> None:
    """Assert that an output, whose values are below 8, agrees with the expected one."""
    wide = torch.finfo(torch.float32 if ours.itemsize == 2 else ours.dtype).eps
    rounding = torch.finfo(ours.dtype).eps if ours.itemsize == 2 else 0
    np.testing.assert_allclose(ours.double().numpy(), exact, rtol=0, atol=8 * (4 * terms * wide + rounding))


# ---- results ----


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("table_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("page_size", [1, 7, 16, 32, 48, 64, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_query_per_sequence(dtype, page_size, table_dtype):
    inputs = sequences(LENGTHS)
    query = sixteenths(len(LENGTHS), 2 * KEY_HEADS, 1, HEAD_DIM)
    ours = attend(torch.from_numpy(query).to(dtype), store_in_pages(inputs, page_size, dtype, table_dtype=table_dtype))
    for entry, (key, value) in enumerate(inputs):
        exact, _ = oracle.attention(query[entry : entry + 1], key, value)
        assert_close(ours[entry : entry + 1], exact, LENGTHS[entry] + 1)
    assert not ours[0].any()
    assert ours.transpose(1, 2).is_contiguous()


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize(("low", "high"), [(None, 0), (-5, 0), (-70, 2), (None, None), (0, None), (1, -1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bands_are_counted_from_the_end_of_each_sequence(dtype, low, high):
    """Also where there are more queries than keys."""
    lengths, queries = [0, 1, 2, 3, 65, 530], 3
    inputs, query = sequences(lengths), sixteenths(len(lengths), KEY_HEADS, queries, HEAD_DIM)
    ours = attend(torch.from_numpy(query).to(dtype), store_in_pages(inputs, 7, dtype), low=low, high=high)
    for entry, (key, value) in enumerate(inputs):
        distance = np.arange(lengths[entry]) - (np.arange(queries) + lengths[entry] - queries)[:, None]
        allowed = (distance >= (-np.inf if low is None else low)) & (distance <= (np.inf if high is None else high))
        exact, _ = oracle.attention(query[entry : entry + 1], key, value, allowed[None, None])
        assert_close(ours[entry : entry + 1], exact, lengths[entry] + 1)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize(
    ("group", "queries"), [(1, 64), (1, 65), (1, 131), (5, 13), (64, 1), (64, 2), (33, 3), (65, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_of_queries(dtype, group, queries):
    """The queries of a group of heads are the rows of a kernel, of which there are at most 64."""
    lengths = [131, 140]
    inputs, query = sequences(lengths, key_heads=2), sixteenths(2, 2 * group, queries, HEAD_DIM)
    ours = attend(torch.from_numpy(query).to(dtype), store_in_pages(inputs, 16, dtype), high=0)
    for entry, (key, value) in enumerate(inputs):
        allowed = np.tri(queries, lengths[entry], lengths[entry] - queries, dtype=bool)[None, None]
        exact, _ = oracle.attention(query[entry : entry + 1], key, value, allowed)
        assert_close(ours[entry : entry + 1], exact, lengths[entry])


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("value_dim", [15, 17, 33, 67, 129])
@pytest.mark.parametrize("page_size", [16, 32, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_read_in_columns(dtype, page_size, value_dim):
    """With AVX2: 32 rows at a time, if they are wider than the sums that fit the registers for a group of queries."""
    lengths = [31, 32, 33, 63, 64, 65, 97, 130, 517]
    inputs = sequences(lengths, value_dim=value_dim)
    for group in (1, 2, 4, 7):
        query = sixteenths(len(lengths), group * KEY_HEADS, 1, HEAD_DIM)
        for low in (None, -41):
            ours = attend(torch.from_numpy(query).to(dtype), store_in_pages(inputs, page_size, dtype), low=low, high=0)
            for entry, (key, value) in enumerate(inputs):
                allowed = np.arange(1 - lengths[entry], 1)[None, None, None] >= (-np.inf if low is None else low)
                exact, _ = oracle.attention(query[entry : entry + 1], key, value, allowed)
                assert_close(ours[entry : entry + 1], exact, lengths[entry] + 1)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("shape", [None, (1, 12, 1, 1), (5, 12, 7, 1)], ids=["no sinks", "sinks", "sinks of queries"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap_and_sinks(dtype, shape, softcap):
    lengths, queries, heads = [0, 1, 65, 130, 530], 7, 12
    inputs, query = sequences(lengths, key_heads=1), sixteenths(len(lengths), heads, queries, HEAD_DIM)
    sinks = None if shape is None else sixteenths(*shape, seed=9)
    ours = attend(
        torch.from_numpy(query).to(dtype),
        store_in_pages(inputs, 16, dtype),
        low=-40,
        high=0,
        softcap=softcap,
        sinks=None if sinks is None else torch.from_numpy(sinks).to(dtype),
    )
    for entry, (key, value) in enumerate(inputs):
        distance = np.arange(lengths[entry]) - (np.arange(queries) + lengths[entry] - queries)[:, None]
        allowed = ((distance >= -40) & (distance <= 0))[None, None]
        own = None if sinks is None else np.broadcast_to(sinks, (5, heads, queries, 1))[entry : entry + 1]
        exact, _ = oracle.attention(query[entry : entry + 1], key, value, allowed, softcap=softcap, sinks=own)
        assert_close(ours[entry : entry + 1], exact, lengths[entry] + 1)


@pytest.mark.parametrize("page_size", [1, 7, 16, 64, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_that_are_hidden_from_all_queries_are_not_read(dtype, page_size):
    """The table names a page of NaN in place of those that lie behind a window of 50 keys."""
    lengths = [49, 130, 1025]
    inputs, query = sequences(lengths), torch.from_numpy(sixteenths(3, KEY_HEADS, 2, HEAD_DIM)).to(dtype)
    pages = store_in_pages(inputs, page_size, dtype)
    expected = attend(query, pages, low=-49, high=0)
    unused = set(range(len(pages.key_pages))) - set(pages.page_table.flatten().tolist())
    for entry, length in enumerate(lengths):
        pages.page_table[entry, : max(length - 2 - 49, 0) // page_size] = min(unused)
    assert torch.equal(attend(query, pages, low=-49, high=0), expected)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("page_size", [1, 7, 16, 48, 64, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_as_without_pages(dtype, page_size):
    """On both sides of the borders of tiles, pages, chunks, and of the kernels for few and for many queries.

    Three key heads with groups of 2; queries of one call follow each other in one entry, and have a window of 70 keys.
    """
    lengths = [512, 1025, 4099, 63, 64, 65, 130, 577, 300, 19]
    counts = [2, 5, 33, 3, 64, 17, 1, 65, 131, 30]
    inputs, tokens = sequences(lengths), sum(counts)
    query = torch.from_numpy(sixteenths(1, 2 * KEY_HEADS, tokens, HEAD_DIM)).to(dtype)
    sinks = torch.from_numpy(sixteenths(1, 2 * KEY_HEADS, tokens, 1, seed=5)).to(dtype)
    pages = store_in_pages(inputs, page_size, dtype)._replace(counts=torch.tensor(counts))
    for low, terms in ((None, {}), (-69, {"softcap": 2.5, "sinks": sinks})):
        ours = attend(query, pages, low=low, high=0, **terms)
        parts = zip(ours.split(counts, 2), query.split(counts, 2), sinks.split(counts, 2), inputs, strict=True)
        for output, own, sink, pair in parts:
            if own.shape[2] == 1:
                continue  # it is always computed by the kernel for few queries
            key, value = (torch.from_numpy(side).to(dtype) for side in pair)
            mask = masks.causal() if low is None else masks.window(69, 0)
            others = {**terms, "sinks": sink} if terms else {}
            plain = regard.attention(own, key, value, mask=mask, impl="native", **others)
            assert torch.equal(output, plain), own.shape


@pytest.mark.parametrize("counts", [[0, 1, 2], [3, 0, 0], [1, 1, 1]])
def test_concatenated_queries_are_those_of_sequences_alone(counts):
    inputs, tokens = store_in_pages(sequences([5, 70, 600]), 16, torch.float32), sum(counts)
    query = torch.from_numpy(sixteenths(1, KEY_HEADS, tokens, HEAD_DIM)).float()
    ours = attend(query, inputs._replace(counts=torch.tensor(counts)), high=0)
    for entry, (output, own) in enumerate(zip(ours.split(counts, 2), query.split(counts, 2), strict=True)):
        alone = inputs._replace(page_table=inputs.page_table[[entry]], lengths=inputs.lengths[[entry]])
        assert torch.equal(output, attend(own, alone, high=0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_with_any_number_of_threads(dtype):
    query = torch.from_numpy(sixteenths(len(LENGTHS), KEY_HEADS, 3, HEAD_DIM)).to(dtype)
    inputs = store_in_pages(sequences(LENGTHS), 7, dtype)
    assert_same_bits(lambda: attend(query, inputs, high=0))


@pytest.mark.usefixtures("poison_scratch_memory")
def test_lse():
    inputs, query = sequences([0, 1, 513]), sixteenths(3, KEY_HEADS, 2, HEAD_DIM)
    output, lse = torch.empty(3, KEY_HEADS, 2, VALUE_DIM, dtype=torch.float64), torch.empty(3, KEY_HEADS, 2).double()
    pages = store_in_pages(inputs, 7, torch.float64)
    extension.native.paged(torch.from_numpy(query), *pages, output, lse, scale=HEAD_DIM**-0.5)
    for entry, (key, value) in enumerate(inputs):
        exact = oracle.observe(query[entry : entry + 1], key, value).lse
        np.testing.assert_allclose(lse[entry : entry + 1].numpy(), exact, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("stored", ["heads and slots swapped", "last stride 2", "an odd offset"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_of_any_strides(dtype, stored):
    query = torch.from_numpy(sixteenths(4, KEY_HEADS, 2, HEAD_DIM)).to(dtype)
    inputs = store_in_pages(sequences([1, 64, 70, 513]), 64, dtype)
    plain, moved = attend(query, inputs, high=0), []
    for pages in (inputs.key_pages, inputs.value_pages):
        if stored == "heads and slots swapped":
            moved.append(pages.transpose(1, 2).contiguous().transpose(1, 2))
        elif stored == "last stride 2":
            moved.append(pages.repeat_interleave(2, 3)[..., ::2])
        else:
            moved.append(torch.nn.functional.pad(pages, (3, 2, 1, 0))[:, :, 1:, 3:-2])
    assert torch.equal(attend(query, inputs._replace(key_pages=moved[0], value_pages=moved[1]), high=0), plain)
    table = inputs.page_table.repeat_interleave(2, 1)[:, ::2]
    assert torch.equal(attend(query, inputs._replace(page_table=table), high=0), plain)


@pytest.mark.usefixtures("poison_scratch_memory")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nonfinite_token_affects_only_queries_that_see_it(dtype, side, bad):
    lengths, queries = [70, 600], 3
    query = torch.from_numpy(sixteenths(2, KEY_HEADS, queries, HEAD_DIM)).to(dtype)
    for at, page_size in ((0, 64), (64, 16), (512, 7), (597, 64), (598, 16), (599, 7)):
        inputs = sequences(lengths)
        quiet = attend(query, store_in_pages(inputs, page_size, dtype), high=0)
        inputs[1][side][0, 1, at, 2] = bad
        ours = attend(query, store_in_pages(inputs, page_size, dtype), high=0)
        broken = torch.zeros(ours.shape[:3], dtype=torch.bool)
        broken[1, 1] = at <= 600 - queries + torch.arange(queries)
        assert ours[broken].isnan().all(), at
        assert torch.equal(ours[~broken], quiet[~broken]), at


# ---- refusals, before any read ----


def with_changed_entry(part: str, number: int, at: tuple[int, ...]) -> PagedKeysValues:
    inputs = store_in_pages(sequences([5, 20]), 7, torch.float32, table_dtype=torch.int64)
    getattr(inputs, part)[at] = number
    return inputs


@pytest.mark.parametrize(
    ("make_pages", "message"),
    [
        (lambda: with_changed_entry("page_table", -1, (0, 0)), "a page that is not there"),
        (lambda: with_changed_entry("page_table", 7, (1, 2)), "a page that is not there"),
        (lambda: with_changed_entry("page_table", 2**62, (1, 0)), "a page that is not there"),
        (lambda: with_changed_entry("page_table", -(2**63), (1, 0)), "a page that is not there"),
        (lambda: with_changed_entry("lengths", -1, (0,)), "no more keys than the pages hold"),
        (lambda: with_changed_entry("lengths", 36, (1,)), "no more keys than the pages hold"),
        (lambda: with_changed_entry("lengths", 2**62, (1,)), "no more keys than the pages hold"),
        (lambda: with_changed_entry("lengths", 22, (1,)), "a page that is not there"),
    ],
)
def test_invalid_page_tables_and_lengths_are_refused(make_pages, message):
    pages = make_pages()
    assert pages.key_pages.shape[0] == 7
    assert pages.page_table.shape[1] * 7 == 35
    with pytest.raises(ValueError, match=message):
        attend(torch.zeros(2, KEY_HEADS, 1, HEAD_DIM), pages)


@pytest.mark.parametrize(
    ("part", "change", "error"),
    [
        ("key_pages", lambda pages: pages.double(), TypeError),
        ("value_pages", lambda pages: pages[:, :2], ValueError),
        ("value_pages", lambda pages: pages[:-1], ValueError),
        ("value_pages", lambda pages: pages[:, :, :6], ValueError),
        ("key_pages", lambda pages: pages[..., :4], ValueError),
        ("page_table", lambda table: table.short(), TypeError),
        ("page_table", lambda table: table[:1], ValueError),
        ("lengths", lambda lengths: lengths.int(), TypeError),
        ("lengths", lambda lengths: lengths[:1], ValueError),
    ],
)
def test_mismatched_arguments_are_refused(part, change, error):
    inputs = store_in_pages(sequences([5, 20]), 7, torch.float32)
    with pytest.raises(error, match=r"\w+: expected"):
        attend(torch.zeros(2, KEY_HEADS, 1, HEAD_DIM), inputs._replace(**{part: change(getattr(inputs, part))}))


@pytest.mark.parametrize("counts", [[1, 1], [2, 2], [4, -1]])
def test_invalid_counts_are_refused(counts):
    inputs = store_in_pages(sequences([5, 20]), 7, torch.float32)._replace(counts=torch.tensor(counts))
    with pytest.raises(ValueError, match="counts: expected as many queries as there are"):
        attend(torch.zeros(1, KEY_HEADS, 3, HEAD_DIM), inputs)


@pytest.mark.parametrize("empty", ["batch", "queries", "value_dim"])
def test_sizes_of_zero(empty):
    batch, queries, value_dim = (0 if empty == name else 2 for name in ("batch", "queries", "value_dim"))
    inputs = PagedKeysValues(
        torch.zeros(4, 3, 7, 5),
        torch.zeros(4, 3, 7, value_dim),
        torch.zeros(batch, 2, dtype=torch.int32),
        torch.full((batch,), 9),
    )
    assert attend(torch.zeros(batch, 6, queries, 5), inputs).shape == (batch, 6, queries, value_dim)


# ---- torch's operators ----


@parametrize_opcheck(["plain", "softcap and sinks"], default_kinds=["softcap and sinks"])
def test_operator_passes_opcheck(name, utilities):
    inputs, query = store_in_pages(sequences([5, 20]), 7, torch.float32), torch.randn(2, 6, 3, HEAD_DIM)
    further = (None, None) if name == "plain" else (1.5, torch.randn(1, 6, 1, 1))
    arguments = (query, *inputs, 0.5, -4, 0, *further)
    torch.library.opcheck(torch.ops.regard.paged_attention.default, arguments, test_utils=utilities)


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ({"softcap": 0.0}, "softcap: expected a finite number above 0"),
        ({"sinks": torch.zeros(1, 5, 1, 1)}, "sinks: expected a shape that broadcasts"),
        ({"sinks": torch.zeros(1, 3, 1, 1, dtype=torch.long)}, "sinks: expected"),
    ],
)
def test_invalid_caps_and_sinks_are_refused(further, message):
    inputs = store_in_pages(sequences([5, 20]), 7, torch.float32)
    with pytest.raises((ValueError, TypeError), match=message):
        attend(torch.zeros(2, KEY_HEADS, 1, HEAD_DIM), inputs, **further)


def test_compiles_to_one_graph():
    given, query = store_in_pages(sequences([5, 20]), 7, torch.float32), torch.randn(2, 6, 3, HEAD_DIM)
    compiled = torch.compile(
        lambda query, *given: attend(query, PagedKeysValues(*given), high=0), fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(query, *given), attend(query, given, high=0))

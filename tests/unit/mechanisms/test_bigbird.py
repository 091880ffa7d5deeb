"""BigBird: the blocks that are drawn, internal and extra global tokens, and what it composes with."""

import numpy as np
import pytest
import torch

import regard
from regard import masks, positions
from regard.conformance.oracles import bigbird as oracle
from regard.errors import DtypeError, OptionError, RefusedError
from regard.masks import Mask
from regard.mechanisms import BigBird
from regard.mechanisms.block_draw import draw_blocks
from regard.mechanisms.weights import weights_by_gradient

BATCH, HEADS, KEYS, HEAD_DIM, VALUE_DIM = 2, 3, 41, 5, 7
WORD = 2**64


def make_inputs(queries=KEYS, keys=KEYS, key_heads=HEADS):
    made = torch.Generator().manual_seed(11)
    shapes = ((HEADS, queries, HEAD_DIM), (key_heads, keys, HEAD_DIM), (key_heads, keys, VALUE_DIM))
    return [torch.randn(BATCH, *shape, generator=made, dtype=torch.float64) for shape in shapes]


def splitmix64(number):
    """Steele, Lea and Flood 2014, figure 16, from a state that is not yet advanced."""
    number = (number + 0x9E3779B97F4A7C15) % WORD
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % WORD
    return number ^ (number >> 31)


def draw_blocks_one_by_one(heads, blocks, count, window, global_blocks, causal, seed):
    """Draw by removing blocks from a list: the list's index is the upper half of a random number, scaled."""
    drawn = []
    for head in range(heads):
        drawn.append([])
        for row in range(blocks):
            free = [
                at
                for at in range(row + 1 if causal else blocks)
                if abs(at - row) > window // 2 and at not in global_blocks
            ]
            key = splitmix64((splitmix64((splitmix64(seed) + head) % WORD) + row) % WORD)
            places = range(min(count, len(free)))
            drawn[-1].append([free.pop((splitmix64((key + at) % WORD) >> 32) * len(free) >> 32) for at in places])
    return drawn


CASES = [
    {"heads": 3, "blocks": 11, "count": 2, "window": 3, "global_blocks": [0, 10], "causal": False, "seed": 0},
    {"heads": 2, "blocks": 9, "count": 5, "window": 1, "global_blocks": [], "causal": False, "seed": 2**63 - 1},
    {"heads": 2, "blocks": 13, "count": 3, "window": 5, "global_blocks": [0], "causal": True, "seed": 7},
    {"heads": 1, "blocks": 1, "count": 1, "window": 3, "global_blocks": [0, 0], "causal": False, "seed": 1},
    {"heads": 1, "blocks": 0, "count": 2, "window": 3, "global_blocks": [], "causal": False, "seed": 1},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_drawn_blocks_agree_with_integer_arithmetic(case):
    actual = draw_blocks(**case)
    expected = draw_blocks_one_by_one(**case)
    assert actual.shape == (case["heads"], case["blocks"], case["count"])
    assert [[[at for at in row if at >= 0] for row in head] for head in actual.tolist()] == expected


def test_free_blocks_are_drawn_uniformly():
    """Over 12,800 draws of 2 of 8 blocks, a count's standard deviation is about 49."""
    actual = draw_blocks(heads=1600, blocks=8, count=2, window=1, global_blocks=[], causal=False, seed=3)
    for row in range(8):
        counts = np.bincount(actual[:, row].flatten(), minlength=8)
        assert counts[row] == 0
        assert np.abs(np.delete(counts, row) - 1600 * 2 / 7).max() < 5 * np.sqrt(1600 * 2 / 7)


def test_causal_blocks_are_independent_of_the_length():
    few, many = (
        draw_blocks(heads=2, blocks=blocks, count=3, window=3, global_blocks=[0], causal=True, seed=5)
        for blocks in (6, 17)
    )
    assert torch.equal(few, many[:, :6])


MASKS = {
    "none": lambda queries, keys: None,
    "causal": lambda queries, keys: masks.causal(),
    "padding": lambda queries, keys: masks.padding([keys, 9]),
    "documents & left padding": lambda queries, keys: (
        masks.documents(torch.arange(keys) // 12) & masks.padding([keys - 4, keys], side="left")
    ),
}
OPTIONS = {
    "internal": {"block": 4, "random_blocks": 2},
    "extended": {"block": 4, "random_blocks": 1, "global_tokens": 3, "global_blocks": []},
    "both": {"block": 8, "window_blocks": 1, "random_blocks": 1, "global_tokens": 2, "global_blocks": [-1, 1]},
    "causal": {"block": 4, "random_blocks": 2, "causal": True, "seed": 3},
    "no random blocks": {"block": 5, "window_blocks": 5, "random_blocks": 0},
}


def expected_output(options, query, key, value, allowed):
    """Compute the output from the paper's sets."""
    queries, keys = query.shape[2], key.shape[2]
    options = {"window_blocks": 3, "global_tokens": 0, "causal": False, "seed": 0} | options
    first, block = options["global_tokens"], options["block"]
    blocks = -(-(keys - first) // block)
    default = [0] if options["causal"] else [0, -1]
    of_blocks = [at % blocks for at in options.get("global_blocks", default)]
    drawn = draw_blocks_one_by_one(
        HEADS, blocks, options["random_blocks"], options["window_blocks"], of_blocks, options["causal"], options["seed"]
    )
    tokens = {*range(first)} | {at for at in range(first, keys) if (at - first) // block in of_blocks}
    allowed = np.ones((1, 1, queries, keys), dtype=bool) if allowed is None else allowed.numpy()
    if options["causal"]:
        allowed = allowed & np.tri(queries, keys, keys - queries, dtype=bool)
    numbers = (one.numpy() for one in (query, key, value))
    return oracle.attention(*numbers, block, options["window_blocks"], drawn, tokens, allowed, first)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("queries", [KEYS, 6])
@pytest.mark.parametrize("options", OPTIONS)
def test_agrees_with_the_paper(mask, queries, options):
    mechanism, of_call = BigBird(heads=HEADS, head_dim=HEAD_DIM, **OPTIONS[options]), MASKS[mask](queries, KEYS)
    inputs = make_inputs(queries)
    allowed = None if of_call is None else of_call.dense(queries, KEYS)
    expected = expected_output(OPTIONS[options], *inputs, allowed)
    np.testing.assert_allclose(mechanism(*inputs, of_call), expected, atol=1e-13)


@pytest.mark.parametrize("keys", [0, 1, 3, 4, 5, 8, 300])
def test_lengths_that_are_no_multiple_of_the_block_size(keys):
    mechanism = BigBird(heads=HEADS, head_dim=HEAD_DIM, block=4, random_blocks=1)
    inputs = make_inputs(keys, keys, key_heads=1)
    actual = mechanism(*inputs)
    if keys:
        expected = expected_output({"block": 4, "random_blocks": 1}, *inputs, None)
        np.testing.assert_allclose(actual, expected, atol=1e-13)
    assert actual.shape == (BATCH, HEADS, keys, VALUE_DIM)


def test_blocks_passed_by_the_caller():
    lists = [[[2], [3], [-1], [0], [1]], [[3], [0], [0], [1], [2]], [[-1], [-1], [4], [9], [-1]]]
    mechanism = BigBird(heads=HEADS, head_dim=HEAD_DIM, block=5, window_blocks=1, random_blocks=lists, global_blocks=[])
    inputs = make_inputs(23, 23)
    drawn = [[{at for at in row if 0 <= at < 5} for row in head] for head in lists]
    expected = oracle.attention(*(one.numpy() for one in inputs), 5, 1, drawn, ())
    np.testing.assert_allclose(mechanism(*inputs), expected, atol=1e-13)
    same = BigBird(heads=HEADS, head_dim=HEAD_DIM, block=5, window_blocks=1, random_blocks=torch.tensor(lists))
    assert "random_blocks=list(3, 5, 1)" in repr(same)
    with pytest.raises(
        RefusedError, match=r"(?s)random_blocks lists 5 blocks of queries, and there are 6.*change the call"
    ):
        mechanism(*make_inputs(27, 27))


def test_blocks_over_the_whole_text_equal_exact_attention():
    inputs = make_inputs()
    whole = regard.mechanism(BigBird.traits.approximates, heads=HEADS, head_dim=HEAD_DIM)
    mechanism = BigBird(heads=HEADS, head_dim=HEAD_DIM, block=4, random_blocks=100)
    torch.testing.assert_close(mechanism(*inputs), whole(*inputs), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (8, 8), (9, 9), (3, 8), (3, 9), (11, 8)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, masks.padding([7, 2])])
def test_texts_of_as_many_blocks_as_a_window_reaches(queries, keys, causal, mask):
    """Texts of two blocks are computed as exact attention; the pattern says to which keys all others attend."""
    mechanism = BigBird(heads=HEADS, head_dim=HEAD_DIM, block=4, global_blocks=[], random_blocks=0, causal=causal)
    pattern = mechanism.pattern(keys) if mask is None else mechanism.pattern(keys) & mask
    inputs = make_inputs(queries, keys)
    expected = regard.attention(*inputs, mask=masks.keep(pattern.dense(queries, keys)), impl="reference")
    torch.testing.assert_close(mechanism(*inputs, mask), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("bias", [None, "tensor", "alibi", "shaw"])
def test_equals_the_dot_product_with_its_pattern_as_a_mask(bias):
    inputs, mask = make_inputs(), masks.padding([KEYS, 15])
    made = {
        None: lambda: None,
        "tensor": lambda: torch.randn(1, HEADS, KEYS, KEYS, dtype=torch.float64),
        "alibi": lambda: positions.ALiBi(HEADS),
        "shaw": lambda: positions.ShawRelative(HEAD_DIM, 3, values=False).double(),
    }[bias]()
    mechanism = BigBird(heads=HEADS, head_dim=HEAD_DIM, block=4, random_blocks=1)
    joined = mechanism.pattern(KEYS) & mask
    expected = regard.attention(*inputs, mask=joined, bias=made, impl="reference")
    torch.testing.assert_close(mechanism(*inputs, mask, bias=made), expected, rtol=0, atol=1e-13)
    rows = torch.tensor([0, 7, 40])
    request = mechanism.make_request(*inputs, mask, made)
    actual = mechanism.weights(*inputs[:2], mask=mask, bias=made, rows=rows)
    if bias != "shaw":
        torch.testing.assert_close(actual, weights_by_gradient(mechanism.attend, request, rows), rtol=0, atol=1e-13)
        return
    assert mechanism.steps(request).mask == joined


def test_no_dense_mask_is_built(monkeypatch, without_shape_checks):
    dense = Mask.dense

    def checked(self, queries, keys, *, device=None, rows=None):
        assert (queries if rows is None else len(rows)) * keys < 2**16, self
        return dense(self, queries, keys, device=device, rows=rows)

    monkeypatch.setattr(Mask, "dense", checked)
    mechanism = BigBird(heads=2, head_dim=4, random_blocks=1)
    query = torch.randn(2, 2, 2000, 4, requires_grad=True)
    mechanism(query, query, query, masks.causal() & masks.padding([2000, 700])).sum().backward()
    assert mechanism.pattern(2000).tiles(2000, 2000).counts["partial"] == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"block": 0}, OptionError, "wrong block"),
        ({"window_blocks": 2}, OptionError, "wrong window_blocks.*odd number.*got: +2"),
        ({"window_blocks": 0}, OptionError, "wrong window_blocks"),
        ({"random_blocks": -1}, OptionError, "wrong random_blocks"),
        ({"random_blocks": [[1, 2]]}, OptionError, r"wrong random_blocks.*heads or 1, query blocks.*shape \(1, 2\)"),
        ({"random_blocks": [[[0]]] * 2}, OptionError, r"wrong random_blocks.*shape \(2, 1, 1\)"),
        ({"random_blocks": [[[0, -2]]]}, OptionError, "wrong random_blocks.*from 0, where -1 is none.*got: +-2"),
        ({"random_blocks": [[[0.5]]]}, DtypeError, "random_blocks must be integers"),
        ({"global_blocks": 0}, OptionError, "wrong global_blocks.*a list of indices"),
        ({"global_blocks": ["first"]}, OptionError, "wrong global_blocks.*indices of blocks"),
        ({"global_blocks": [0.5]}, OptionError, "wrong global_blocks.*indices of blocks"),
        ({"global_blocks": [-1], "causal": True}, OptionError, "wrong global_blocks.*from 0.*got: +-1"),
        ({"global_tokens": -1}, OptionError, "wrong global_tokens"),
        ({"causal": "yes"}, OptionError, "wrong causal"),
        ({"seed": -1}, OptionError, "wrong seed"),
    ],
)
def test_invalid_options_are_refused(options, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        BigBird(heads=HEADS, head_dim=HEAD_DIM, **options)

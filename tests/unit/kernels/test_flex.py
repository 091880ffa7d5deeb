"""FlexAttention, uncompiled on a CPU, against the reference; and compiled on a GPU if there is one."""

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import flex_attention
from torch.testing import assert_close

import regard
from regard import masks, positions
from regard.errors import RefusedError
from regard.kernels.hardware import Hardware
from regard.kernels.implementations import flex
from regard.kernels.implementations.flex import ATTENTION, call_compiled, run_flex_attention
from regard.kernels.implementations.flex_mask import lower_mask
from regard.kernels.request import Request, Terms
from regard.masks import tiles

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")

BATCH, HEADS, DIM = 2, 3, 8


def tensors(queries, keys, key_heads=HEADS, heads=HEADS, value_dim=DIM):
    """Random tensors in float32, the widest dtype that FlexAttention supports."""
    query = torch.randn(BATCH, heads, queries, DIM)
    return query, torch.randn(BATCH, key_heads, keys, DIM), torch.randn(BATCH, key_heads, keys, value_dim)


def run_kernel(kernel, query, key, value, mask=None, bias=None, scale=None, **terms):
    factor = DIM**-0.5 if scale is None else scale
    return run_flex_attention(Request(query, key, value, Terms(mask, bias, factor, **terms)), kernel)


@pytest.fixture
def uncompiled(flex_attention):
    return partial(run_kernel, flex_attention)


def random_mask_per_head(queries, keys):
    return masks.keep(torch.rand(1, HEADS, queries, keys) < 0.5)


def random_mask_per_batch_entry(queries, keys):
    return masks.keep(torch.rand(BATCH, 1, queries, keys) < 0.5)


MASKS = {
    "none": lambda queries, keys: None,
    "causal": lambda queries, keys: masks.causal(),
    "causal from the start": lambda queries, keys: masks.causal(align="start"),
    "window": lambda queries, keys: masks.window(3, 2),
    "padding": lambda queries, keys: masks.padding([keys, keys // 2]),
    "all hidden": lambda queries, keys: masks.padding([keys, 0]),
    "joined": lambda queries, keys: masks.causal() & (masks.window(5, 0) | masks.global_tokens([1])),
    "not": lambda queries, keys: ~masks.causal() | masks.padding([keys // 3, 1], side="left"),
    "documents": lambda queries, keys: masks.documents(
        torch.arange(BATCH * keys).view(BATCH, keys) // 5,
        query_ids=torch.arange(BATCH * queries).view(BATCH, queries) // 3,
    ),
    "by batch": random_mask_per_batch_entry,
    "by head": random_mask_per_head,
    "by both": lambda queries, keys: random_mask_per_batch_entry(queries, keys) & random_mask_per_head(queries, keys),
}
LENGTHS = [(5, 5), (7, 3), (127, 131), (131, 257)]  # a block has 128


@pytest.mark.parametrize("name", MASKS)
def test_masks(uncompiled, name):
    for queries, keys in LENGTHS:
        mask, inputs = MASKS[name](queries, keys), tensors(queries, keys)
        expected = regard.attention(*inputs, mask=mask, impl="reference")
        assert_close(uncompiled(*inputs, mask=mask), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "make",
    [lambda: None, lambda: torch.randn(1, HEADS, 5, 1), lambda: positions.ALiBi(HEADS)],
    ids=["none", "tensor", "distance"],
)
def test_torch_compile_traces_mask_and_bias_functions(make):
    """As in each call on a GPU: the functions of all kinds of masks, combined, and of each kind of bias."""
    inputs, bias = tensors(5, 7), make()
    rows = masks.causal() & masks.padding([7, 3]) | ~masks.window(1, 0)
    drawn = masks.random_blocks(1, block=3) | masks.global_tokens([2])
    mask = (rows | drawn) & MASKS["documents"](5, 7) | random_mask_per_head(5, 7)
    expected = regard.attention(*inputs, mask=mask, bias=bias, impl="reference")
    assert_close(run_kernel(flex_attention, *inputs, mask=mask, bias=bias), expected, rtol=0, atol=2e-6)


@pytest.fixture
def compilations(monkeypatch):
    """Counts what is compiled; the code that torch makes is run by Python, not by a compiler of a device."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    flex._compile_flex_attention.cache_clear()
    torch._dynamo.reset()
    yield counter
    flex._compile_flex_attention.cache_clear()
    torch._dynamo.reset()


def check_compiled(mask, queries=5, keys=7, **terms):
    inputs = tensors(queries, keys)
    expected = regard.attention(*inputs, mask=mask, **terms, impl="reference")
    assert_close(run_kernel(call_compiled, *inputs, mask=mask, **terms), expected, rtol=0, atol=2e-6)


def test_more_masks_than_torch_compiles_by_default_are_all_compiled(compilations):
    """After `recompile_limit` compilations, 8, torch would compute with the full matrix of scores, and only warn."""
    for left in range(12):
        check_compiled(masks.window(left, 1))
    assert compilations.frame_count == 12


def test_new_values_of_a_mask_are_not_compiled_again(compilations):
    for first, second in ((131, 7), (5, 130), (67, 1)):
        check_compiled(masks.padding([first, second]), 131, 131)
        check_compiled(masks.documents(torch.arange(131)[None] // second), 131, 131)
    assert compilations.frame_count == 2


def test_calls_with_and_without_a_mask_alternate(compilations):
    """In one function, torch 2.13 would look for the tensors of a block mask in the call without one."""
    for mask in (None, masks.causal(), None, masks.causal()):
        check_compiled(mask, bias=positions.ALiBi(HEADS))
    assert compilations.frame_count == 2


def test_the_limit_of_compilations_is_an_error(compilations, monkeypatch):
    monkeypatch.setattr(flex, "MAX_COMPILATIONS", 2)
    check_compiled(masks.window(1, 1))
    check_compiled(masks.padding([5, 3]))
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"(?s)compiled too often.*at most 2 .*without its compiler.*sdpa"):
            check_compiled(masks.global_tokens([1]))
    check_compiled(masks.window(1, 1))  # what is compiled already goes on


def test_a_mask_is_lowered_once_a_device(monkeypatch):
    made = []
    build = tiles.build_tile_map
    monkeypatch.setattr(tiles, "build_tile_map", lambda *parts: made.append(1) or build(*parts))
    mask, inputs = masks.documents(torch.arange(131)[None] // 5), tensors(131, 131)
    first = lower_mask(Request(*inputs, Terms(mask)))
    assert lower_mask(Request(*tensors(131, 131), Terms(mask))) is first
    elsewhere = lower_mask(Request(*(side.to("meta") for side in inputs), Terms(mask)))
    assert elsewhere.blocks.kv_indices.is_meta
    assert lower_mask(Request(*inputs, Terms(mask))) is first
    assert len(made) == 1  # and its tile map for both


TRAINED = {
    "causal": {"mask": masks.causal()},
    "an empty entry": {"mask": masks.padding([151, 0])},
    "documents": {"mask": masks.documents(torch.arange(151)[None] // 20)},
    "bias of pairs": {"mask": masks.causal(), "bias": lambda: torch.randn(1, HEADS, 131, 151).requires_grad_()},
    "bias of keys": {"bias": lambda: torch.randn(BATCH, 1, 1, 151).requires_grad_()},
    "t5": {"mask": masks.window(17, 3), "bias": lambda: positions.T5Buckets(HEADS)},
    "softcap": {"softcap": 1.5, "mask": masks.causal()},
    "softcap, bias and sinks": {
        "softcap": 1.5,
        "bias": lambda: torch.randn(1, HEADS, 1, 151).requires_grad_(),
        "sinks": lambda: torch.randn(1, HEADS, 1, 1).requires_grad_(),
    },
}


@pytest.mark.parametrize("name", TRAINED)
def test_gradients(name, monkeypatch):
    """Torch refuses the backward pass on a CPU only since it has no compiled one there; its equations run anywhere."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *tensors: None)
    terms = {key: term() if callable(term) else term for key, term in TRAINED[name].items()}
    inputs = [side.requires_grad_() for side in tensors(131, 151)]
    trained = [*inputs, *(term for term in terms.values() if isinstance(term, torch.Tensor))]
    if isinstance(terms.get("bias"), torch.nn.Module):
        trained += terms["bias"].parameters()
    upstream = torch.randn(BATCH, HEADS, 131, DIM)
    ours = torch.autograd.grad(run_kernel(flex_attention, *inputs, **terms), trained, upstream)
    wide = {key: term.double() if isinstance(term, torch.Tensor) else term for key, term in terms.items()}
    expected = regard.attention(*(side.double() for side in inputs), **wide, scale=DIM**-0.5, impl="reference")
    for our, their in zip(ours, torch.autograd.grad(expected, trained, upstream.double()), strict=True):
        # Sums of at most 2 * 131 * 3 products of numbers of about 1 in float32.
        assert_close(our, their, rtol=0, atol=1e-5 * max(1.0, float(their.abs().max())))


@pytest.mark.parametrize("key_heads", [1, 2])
def test_grouped_queries_and_wider_values(uncompiled, key_heads):
    inputs = tensors(5, 7, key_heads=key_heads, heads=6, value_dim=16)
    for mask in (None, masks.causal(), masks.padding([7, 3]), masks.keep(torch.rand(1, 6, 5, 7) < 0.5)):
        expected = regard.attention(*inputs, mask=mask, impl="reference")
        assert_close(uncompiled(*inputs, mask=mask), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("scale", [1.0, 0.25, -0.5])
def test_scale(uncompiled, scale):
    inputs = tensors(5, 7)
    assert_close(uncompiled(*inputs, scale=scale), regard.attention(*inputs, scale=scale, impl="reference"))


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("shape", [None, (1, HEADS, 1, 1), (BATCH, HEADS, 5, 1)])
def test_softcap_and_sinks(uncompiled, shape, softcap):
    inputs, bias = tensors(5, 7), torch.randn(1, HEADS, 5, 7)
    sinks = None if shape is None else torch.randn(shape)
    for mask in (None, masks.causal(), masks.padding([7, 0])):
        terms = {"mask": mask, "bias": bias, "softcap": softcap, "sinks": sinks}
        expected = regard.attention(*inputs, **terms, impl="reference")
        assert_close(uncompiled(*inputs, **terms), expected, rtol=0, atol=2e-6)


def test_torch_compile_traces_a_softcap():
    inputs, bias = tensors(5, 7), torch.randn(1, HEADS, 5, 7)
    terms = {"mask": masks.causal(), "bias": bias, "softcap": 1.5, "sinks": torch.randn(1, HEADS, 1, 1)}
    expected = regard.attention(*inputs, **terms, impl="reference")
    assert_close(run_kernel(flex_attention, *inputs, **terms), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("make", [lambda: positions.ALiBi(HEADS), lambda: positions.T5Buckets(HEADS)])
def test_distance_biases(uncompiled, make):
    for queries, keys in LENGTHS[:3]:
        bias, inputs = make(), tensors(queries, keys)
        for mask in (None, masks.causal()):
            expected = regard.attention(*inputs, mask=mask, bias=bias, impl="reference")
            with torch.no_grad():  # a CPU has no backward of FlexAttention
                assert_close(uncompiled(*inputs, mask=mask, bias=bias), expected, rtol=0, atol=2e-6)


def test_alibi_with_one_slope_for_all_heads(uncompiled):
    inputs, bias = tensors(5, 7), positions.ALiBi(1)
    assert_close(uncompiled(*inputs, bias=bias), regard.attention(*inputs, bias=bias, impl="reference"))


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (1, 1, 5, 7), (BATCH, 1, 1, 7), (1, HEADS, 5, 1), (BATCH, HEADS, 5, 7)]
)
def test_bias_tensors(uncompiled, shape):
    inputs, bias = tensors(5, 7), torch.randn(shape)
    for mask in (None, masks.window(2, 1)):
        expected = regard.attention(*inputs, mask=mask, bias=bias, impl="reference")
        assert_close(uncompiled(*inputs, mask=mask, bias=bias), expected, rtol=0, atol=2e-6)


def test_bias_of_minus_infinity_masks(uncompiled):
    inputs, bias = tensors(5, 7), torch.randn(1, HEADS, 5, 7)
    bias[:, :, 1] = -torch.inf  # an empty row
    bias[:, :, 2:, :3] = -torch.inf
    output = uncompiled(*inputs, bias=bias)
    assert_close(output, regard.attention(*inputs, bias=bias, impl="reference"), rtol=0, atol=2e-6)
    assert output[:, :, 1].abs().max() == 0


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize(
    "mask",
    [
        masks.padding([7, 3]),
        masks.padding([7, 3]) & masks.causal(),
        masks.padding([7, 3]) & masks.keep(torch.ones(1, HEADS, 5, 7, dtype=torch.bool)),
        masks.padding([7, 0]),
    ],
    ids=repr,
)
def test_keys_hidden_from_every_query(uncompiled, mask, poison):
    query, key, value = tensors(5, 7)
    clean = uncompiled(query, key, value, mask=mask)
    for tensor in (key, value):
        tensor[1, :, 3:] = poison
    assert torch.equal(uncompiled(query, key, value, mask=mask), clean)


def test_keys_hidden_from_the_whole_group(uncompiled):
    query, key, value = tensors(5, 7, key_heads=2, heads=6)
    allowed = torch.ones(1, 6, 5, 7, dtype=torch.bool)
    allowed[0, :3, :, 4:] = False  # the first key head serves query heads 0 to 2
    allowed[0, 4:, :, :2] = False  # and query head 3 still sees these of the second
    mask = masks.keep(allowed)
    clean = uncompiled(query, key, value, mask=mask)
    key[:, 0, 4:] = value[:, 0, 4:] = torch.nan
    assert torch.equal(uncompiled(query, key, value, mask=mask), clean)
    assert_close(clean, regard.attention(query, key.nan_to_num(), value.nan_to_num(), mask=mask, impl="reference"))


def test_block_mask_follows_the_tile_map():
    def blocks(mask, queries, keys):
        query, key, value = tensors(queries, keys)
        return lower_mask(Request(query, key, value, Terms(mask))).blocks

    causal = blocks(masks.causal(), 384, 384)
    assert causal.kv_num_blocks.tolist() == [[[1, 1, 1]]]  # partial: the diagonal
    assert causal.full_kv_num_blocks.tolist() == [[[0, 1, 2]]]
    assert causal.full_kv_indices[0, 0, 2, :2].tolist() == [0, 1]
    window = blocks(masks.window(1, 0), 384, 384)
    assert (window.kv_num_blocks + window.full_kv_num_blocks).tolist() == [[[1, 2, 2]]]
    assert blocks(masks.padding([384, 128]), 384, 384).full_kv_num_blocks.tolist() == [[[3] * 3], [[1] * 3]]


class TestRefusals:
    @pytest.mark.parametrize("options", [{}, {"dropout": 0.5}, {"bias": positions.ShawRelative(DIM)}], ids=repr)
    def test_cpu(self, options):
        inputs = tensors(5, 7)
        with pytest.raises(RefusedError, match=r"(?s)'flex' refuses: flex runs on a CUDA or XPU.*cpu.*impl=\"auto\""):
            regard.attention(*inputs, impl="flex", **options)
        assert "CUDA" in regard.why(*inputs, **options).reasons["flex"]

    def test_observe(self):
        with pytest.raises(RefusedError, match=r"(?s)'flex' refuses"):
            regard.observe(*tensors(5, 7), impl="flex")

    def test_masks_in_a_graph(self, monkeypatch):
        request = Request(*tensors(5, 7), Terms(masks.causal()), hardware=Hardware("cuda", (9, 0), has_triton=True))
        assert ATTENTION.refuses(request) is None
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert "a tile map" in ATTENTION.refuses(request)
        assert ATTENTION.refuses(request.replace(mask=None)) is None

    def test_transforms(self):
        request = Request(*tensors(5, 7), Terms(masks.causal()), hardware=Hardware("cuda", (9, 0), has_triton=True))
        reasons = []
        torch.func.grad(lambda query: reasons.append(ATTENTION.refuses(request)) or query.sum())(request.query)
        assert "torch.func" in reasons[0]

    @pytest.mark.gpu
    def test_no_queries_or_keys_on_a_gpu(self):
        for lengths in ((0, 5), (5, 0)):
            with pytest.raises(RefusedError, match="at least one query and one key"):
                regard.attention(*(tensor.cuda() for tensor in tensors(*lengths)), impl="flex")

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"dropout": 0.5}, "FlexAttention has no dropout"),
            ({"dtype": torch.float64}, "FlexAttention has no float64"),
            ({"bias": positions.ShawRelative(DIM)}, "FlexAttention takes a bias for each pair, and ShawRelative needs"),
        ],
        ids=str,
    )
    @pytest.mark.gpu
    def test_on_a_gpu(self, options, reason):
        options = dict(options)
        dtype = options.pop("dtype", torch.float32)
        inputs = [tensor.to("cuda", dtype) for tensor in tensors(5, 7)]
        with pytest.raises(RefusedError, match=reason):
            regard.attention(*inputs, impl="flex", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MASKS)
def test_compiled(name):
    mask, inputs = MASKS[name](131, 257), [tensor.cuda() for tensor in tensors(131, 257)]
    expected = regard.attention(*inputs, mask=mask, impl="reference")
    assert_close(regard.attention(*inputs, mask=mask, impl="flex"), expected, rtol=0, atol=5e-3)  # TF32: 10 bits

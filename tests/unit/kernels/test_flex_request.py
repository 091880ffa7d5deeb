"""Conversion of requests to FlexAttention's arguments, run uncompiled on a CPU against the reference."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import regard
from conformance.mask_cases import LAYOUTS, MASK_CASES
from regard import masks, positions
from regard.kernels.implementations.flex import run_flex_attention
from regard.kernels.implementations.flex_mask import lower_mask
from regard.validation import make_request

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def tensors(at, learning: bool = False):
    shapes = [
        (at.batch, at.heads, at.queries, at.head_dim),
        (at.batch, at.key_heads, at.keys, at.head_dim),
        (at.batch, at.key_heads, at.keys, at.value_dim),
    ]
    return [torch.randn(shape, requires_grad=learning) for shape in shapes]


@pytest.fixture
def run_flex(flex_attention):
    def compute(query, key, value, *, mask=None, bias=None, scale=None):
        with torch.no_grad():  # torch traces the mask and bias functions, and warns about parameters in them
            return run_flex_attention(
                make_request(query, key, value, mask=mask, bias=bias, scale=scale), flex_attention
            )

    return compute


@pytest.mark.parametrize(
    "at",
    [pytest.param(LAYOUTS[0], marks=pytest.mark.slow), pytest.param(LAYOUTS[1], marks=pytest.mark.slow), LAYOUTS[2]],
    ids=["square", "decoding", "more queries"],
)
def test_every_mask(run_flex, at, without_shape_checks):
    query, key, value = tensors(at)
    for trial in MASK_CASES:
        mask = trial.mask(at)
        ours = run_flex(query, key, value, mask=mask)
        theirs = regard.attention(query, key, value, mask=mask, impl="reference")
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6, msg=lambda text, name=trial.name: f"{name}: {text}")


@pytest.mark.parametrize("at", LAYOUTS, ids=["square", "decoding", "more queries"])
@pytest.mark.parametrize(
    "make",
    [
        lambda at: torch.randn(1, at.heads, at.queries, at.keys),
        lambda at: torch.randn(at.batch, 1, 1, at.keys),
        lambda at: torch.randn(1, 1, at.queries, 1),
        lambda at: positions.ALiBi(at.heads),
        lambda at: positions.T5Buckets(at.heads, buckets=8, max_distance=11),
        lambda at: positions.T5Buckets(1, buckets=8, max_distance=11),
    ],
    ids=["a matrix a head", "of keys", "of queries", "alibi", "t5", "t5 of one head"],
)
def test_every_bias(run_flex, at, make):
    query, key, value = tensors(at)
    bias, mask = make(at), masks.causal() | masks.global_tokens([0])
    for scale in (None, 0.3):
        ours = run_flex(query, key, value, mask=mask, bias=bias, scale=scale)
        theirs = regard.attention(query, key, value, mask=mask, bias=bias, scale=scale, impl="reference")
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_padding_hides_nonfinite_values(run_flex):
    query, key, value = tensors(LAYOUTS[0])
    mask = masks.padding([5, 3])
    hidden = ~mask.dense(7, 7)[:, :, 0, :, None]
    poisoned = [side.masked_fill(hidden, torch.nan) for side in (key, value)]
    assert torch.equal(run_flex(query, *poisoned, mask=mask), run_flex(query, key, value, mask=mask))


@pytest.mark.parametrize("length", [127, 128, 300])
def test_block_mask_equals_torchs(length):
    """The tiles that FlexAttention finds by evaluating every cell: no extra tile, and no partial tile called full."""
    query = torch.randn(2, 3, length, 5)
    mask = (masks.causal() & masks.window(130, 0) & masks.padding([length, 65])) | masks.global_tokens([7])
    ours = lower_mask(make_request(query, query, query, mask=mask, bias=None, scale=None)).blocks
    theirs = create_block_mask(mask.mask_mod(length, length), 2, 1, length, length, device="cpu", BLOCK_SIZE=128)
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert torch.equal(ours.full_kv_num_blocks, theirs.full_kv_num_blocks)
    assert torch.equal(ours.kv_num_blocks, theirs.kv_num_blocks)

"""Positions against the oracles, and against transformers for formulas whose meaning a published model defines."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotary
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

import regard
from regard import positions
from regard.conformance.oracles import positions as oracle
from regard.conformance.oracles import rotary as rotary_oracle
from regard.contract import Frame

HEAD_DIM, TRAINED = 26, 512


@pytest.mark.parametrize(("length", "offset"), [(1, 0), (13, 0), (7, 1000)])
def test_sinusoidal(length, offset):
    ours = positions.Sinusoidal(14).double()(length, offset=offset)
    np.testing.assert_allclose(ours, oracle.sinusoidal(offset + length, 14)[offset:], atol=1e-12)
    assert positions.Sinusoidal(14)(100_003)[-1].dtype == torch.float32


def test_sinusoidal_is_accurate_at_large_positions():
    """If all were computed in float32, the angle at 100,000 would have an error of 4e-3."""
    far = positions.Sinusoidal(2)(1, offset=100_000)
    np.testing.assert_allclose(far[0], [np.sin(1e5), np.cos(1e5)], atol=1e-7)


def test_learned_positions_are_rows_of_the_table():
    learned = positions.Learned(11, 5)
    assert torch.equal(learned(3, offset=2), learned.weight[2:5])


@pytest.mark.parametrize("heads", [1, 2, 3, 7, 8, 11, 12, 16])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3), (1, 11)])
def test_alibi(heads, queries, keys):
    frame, query = Frame(queries, keys), torch.zeros(1, heads, queries, 2, dtype=torch.float64)
    ours = positions.ALiBi(heads).bfloat16().scores(query, frame, frame.all_rows(), 1.0)[0]
    np.testing.assert_allclose(ours, oracle.alibi(heads, queries, keys), rtol=1e-14)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (10, 37)])
def test_t5_buckets(bidirectional, buckets, max_distance):
    distance = torch.arange(-300, 301)
    position = positions.T5Buckets(3, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    ours = position.bucket(distance)
    theirs = T5Attention._relative_position_bucket(distance, bidirectional, buckets, max_distance)
    assert torch.equal(ours, theirs)
    exact = [oracle.t5_bucket(int(at), bidirectional, buckets, max_distance) for at in distance]
    # For a distance exactly on an edge, the published float32 formula may round to the previous bucket.
    assert (np.abs(ours.numpy() - exact) <= 1).all()
    assert (ours.numpy() == exact).mean() > 0.98


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3)])
@pytest.mark.parametrize("mask", [None, regard.masks.causal(align="start")])
@pytest.mark.parametrize("values", [True, False])
def test_shaw(queries, keys, mask, values):
    torch.manual_seed(1)
    position = positions.ShawRelative(5, 2, values=values).double()
    query, key, value = (torch.randn(2, 3, length, 5, dtype=torch.float64) for length in (queries, keys, keys))
    ours = regard.attention(query, key, value, mask=mask, bias=position)
    table = position.value_vectors.detach().numpy() if values else None
    allowed = None if mask is None else mask.dense(queries, keys).numpy()
    theirs, _ = oracle.shaw(
        *(side.numpy() for side in (query, key, value)), position.key_vectors.detach().numpy(), table, allowed
    )
    np.testing.assert_allclose(ours.detach(), theirs, atol=1e-13)


@pytest.mark.parametrize("layout", ["halves", "pairs"])
@pytest.mark.parametrize(
    ("scaling", "theta", "magnitude"),
    [
        (None, rotary_oracle.frequencies(HEAD_DIM), 1.0),
        (positions.LinearScaling(3.0), rotary_oracle.linear(HEAD_DIM, 3.0), 1.0),
        (positions.DynamicScaling(3.0, 17), rotary_oracle.dynamic_ntk(HEAD_DIM, 3.0, 17, 42), 1.0),
        (
            positions.YarnScaling(5.0, TRAINED),
            rotary_oracle.yarn(HEAD_DIM, 5.0, TRAINED),
            rotary_oracle.yarn_magnitude(5.0),
        ),
        (positions.Llama3Scaling(7.0, TRAINED), rotary_oracle.llama3(HEAD_DIM, 7.0, TRAINED, 10_000.0), 1.0),
    ],
)
def test_rotary(layout, scaling, theta, magnitude):
    tokens = torch.randn(2, 3, 11, HEAD_DIM, dtype=torch.float64)
    ours = positions.Rotary(HEAD_DIM, layout=layout, scaling=scaling)(tokens, offset=31)
    theirs = rotary_oracle.rotate(tokens.numpy(), theta, layout, 31, magnitude)
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        ({"rope_type": "default"}, None),
        ({"rope_type": "linear", "factor": 3.0}, positions.LinearScaling(3.0)),
        ({"rope_type": "dynamic", "factor": 3.0}, positions.DynamicScaling(3.0, TRAINED)),
        (
            {"rope_type": "yarn", "factor": 5.0, "original_max_position_embeddings": TRAINED},
            positions.YarnScaling(5.0, TRAINED),
        ),
        (
            {
                "rope_type": "llama3",
                "factor": 7.0,
                "low_freq_factor": 2.0,
                "high_freq_factor": 5.0,
                "original_max_position_embeddings": TRAINED,
            },
            positions.Llama3Scaling(7.0, TRAINED, low=2.0, high=5.0),
        ),
    ],
    ids=["default", "linear", "dynamic", "yarn", "llama3"],
)
def test_rotary_agrees_with_llama(parameters, scaling):
    length = 601  # beyond the trained length, where "dynamic" differs
    config = LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_theta": 10_000.0, **parameters},
    )
    query, key = torch.randn(2, 1, 2, length, HEAD_DIM)
    cosine, sine = LlamaRotaryEmbedding(config)(query, torch.arange(length)[None])
    ours = positions.Rotary(HEAD_DIM, scaling=scaling)
    for tokens, theirs in zip((query, key), apply_rotary_pos_emb(query, key, cosine, sine), strict=True):
        # transformers has float32 angles: at position 600 their error is about 600 * 6e-8
        torch.testing.assert_close(ours(tokens), theirs, rtol=0, atol=3e-4)
    if scaling is not None:
        theirs, magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=length)
        mine = scaling.frequencies(10_000.0, HEAD_DIM, length)
        torch.testing.assert_close(mine.float(), theirs, rtol=2e-6, atol=0)
        assert scaling.magnitude == pytest.approx(magnitude)


def test_partial_rotation_in_pairs_agrees_with_gpt_j():
    tokens = torch.randn(2, 7, 3, 16)
    table = create_sinusoidal_positions(7, 8)[None].expand(2, -1, -1)
    sine, cosine = table.chunk(2, dim=-1)
    theirs = torch.cat([gptj_rotary(tokens[..., :8], sine, cosine), tokens[..., 8:]], dim=-1).transpose(1, 2)
    ours = positions.Rotary(16, layout="pairs", rotated=8)(tokens.transpose(1, 2))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("impl", ["reference", "native", "sdpa"])
@pytest.mark.parametrize(
    "make", [lambda: positions.ALiBi(3), lambda: positions.T5Buckets(3, buckets=8, max_distance=11)]
)
def test_distance_bias_equals_its_matrix(impl, make):
    bias, frame = make().double(), Frame(5, 7)
    query, key, value = (torch.randn(2, 3, length, 5, dtype=torch.float64) for length in (5, 7, 7))
    matrix = bias.scores(query, frame, frame.all_rows(), 1.0)
    ours = regard.attention(query, key, value, bias=bias, mask=regard.masks.causal(), impl=impl)
    theirs = regard.attention(query, key, value, bias=matrix, mask=regard.masks.causal(), impl="reference")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)

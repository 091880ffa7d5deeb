"""The oracles against transformers, for formulas whose meaning a published model defines."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from regard.conformance.oracles import positions, rotary

HEAD_DIM, TRAINED_LENGTH, BASE = 26, 512, 10_000.0


@pytest.mark.parametrize(
    ("parameters", "length", "expected"),
    [
        ({"rope_type": "linear", "factor": 3.0}, None, rotary.linear(HEAD_DIM, 3.0)),
        (
            {"rope_type": "dynamic", "factor": 3.0},
            700,
            rotary.dynamic_ntk(HEAD_DIM, 3.0, TRAINED_LENGTH, 700),
        ),
        ({"rope_type": "dynamic", "factor": 3.0}, 300, rotary.frequencies(HEAD_DIM)),
        (
            {"rope_type": "yarn", "factor": 5.0, "original_max_position_embeddings": TRAINED_LENGTH},
            None,
            rotary.yarn(HEAD_DIM, 5.0, TRAINED_LENGTH),
        ),
        (
            {
                "rope_type": "llama3",
                "factor": 7.0,
                "low_freq_factor": 2.0,
                "high_freq_factor": 5.0,
                "original_max_position_embeddings": TRAINED_LENGTH,
            },
            None,
            rotary.llama3(HEAD_DIM, 7.0, TRAINED_LENGTH, BASE, 2.0, 5.0),
        ),
    ],
    ids=["linear", "dynamic", "dynamic-short", "yarn", "llama3"],
)
def test_scaled_frequencies_agree_with_transformers(parameters, length, expected):
    config = LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        max_position_embeddings=TRAINED_LENGTH,
        rope_parameters={"rope_theta": BASE, **parameters},
    )
    theirs, magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", length)
    np.testing.assert_allclose(theirs.numpy(), expected, rtol=1e-6)
    expected_magnitude = rotary.yarn_magnitude(5.0) if parameters["rope_type"] == "yarn" else 1.0
    assert magnitude == pytest.approx(expected_magnitude)


def test_rotation_agrees_with_llama():
    vectors = np.random.default_rng(5).normal(size=(2, 3, 7, HEAD_DIM))
    theta = rotary.frequencies(HEAD_DIM)
    angles = np.outer(np.arange(7) + 11, theta)
    cosine, sine = (torch.tensor(np.tile(f(angles), 2))[None] for f in (np.cos, np.sin))
    theirs, _ = apply_rotary_pos_emb(torch.tensor(vectors), torch.tensor(vectors), cosine, sine)
    np.testing.assert_allclose(rotary.rotate(vectors, theta, "halves", offset=11), theirs.numpy(), atol=1e-13)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (24, 101)])
def test_buckets_agree_with_t5(bidirectional, buckets, farthest):
    distances = np.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(torch.tensor(distances), bidirectional, buckets, farthest)
    ours = [positions.t5_bucket(int(distance), bidirectional, buckets, farthest) for distance in distances]
    assert ours == theirs.tolist()


@pytest.mark.parametrize("heads", [2, 3, 7, 8, 11, 16])
def test_alibi_slopes_agree_with_bloom(heads):
    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)
    np.testing.assert_allclose(positions.alibi_slopes(heads), theirs[:, 0, 1].numpy(), rtol=1e-6)

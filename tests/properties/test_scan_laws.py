"""The forms of the scan family agree, whatever the decays: in parallel as weights, in chunks, and token by token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from hypothesis_examples import examples
from regard import masks

HEADS, HEAD_DIM, VALUE_DIM = 2, 5, 3
NAMES = pytest.mark.parametrize("name", ["retention", "gated_linear", "mamba2", "gated_delta", "kda"])
law_settings = examples(15, without_slow=3)


def draw(name, seed, length, spread):
    """Return a mechanism, and inputs whose extra inputs, the logits of decays and rates, have the given spread."""
    torch.manual_seed(seed)
    mechanism = regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM).double()
    inputs = {"query": HEAD_DIM, "key": HEAD_DIM, "value": VALUE_DIM}
    tensors = {key: torch.randn(2, HEADS, length, size, dtype=torch.float64) for key, size in inputs.items()}
    for one in mechanism.extra_inputs:
        tensors[one.name] = spread * torch.randn(2, HEADS, length, one.size, dtype=torch.float64)
    return mechanism, tensors


@NAMES
@law_settings
@given(seed=st.integers(0, 999), length=st.integers(1, 83), spread=st.sampled_from([0.1, 2.0, 20.0]))
@torch.no_grad()
def test_parallel_chunked_and_recurrent_forms_agree(name, seed, length, spread):
    mechanism, inputs = draw(name, seed, length, spread)
    chunked = mechanism(**inputs)
    value = inputs["value"]
    weights = mechanism.weights(**{key: one for key, one in inputs.items() if key != "value"})
    largest = max(1.0, float(chunked.abs().max()))
    torch.testing.assert_close(weights @ value, chunked, rtol=0, atol=1e-11 * largest)
    state, parts = mechanism.empty_state(), []
    for token in range(length):
        one = {key: tensor[:, :, token : token + 1] for key, tensor in inputs.items()}
        part, state = mechanism.step(**one, state=state, mask=masks.causal())
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=2), chunked, rtol=0, atol=1e-11 * largest)
    mechanism.impl = "reference"
    torch.testing.assert_close(mechanism(**inputs), chunked, rtol=0, atol=1e-11 * largest)


@NAMES
@law_settings
@given(seed=st.integers(0, 999), cut=st.integers(1, 99))
@torch.no_grad()
def test_later_tokens_change_no_bit(name, seed, cut):
    mechanism, inputs = draw(name, seed, 100, 2.0)
    inputs = {key: one.float() for key, one in inputs.items()}
    mechanism.float()
    before = mechanism(**inputs)
    changed = {key: one.clone() for key, one in inputs.items()}
    for one in changed.values():
        one[:, :, cut:] = 3e38
    assert torch.equal(mechanism(**changed)[:, :, :cut], before[:, :, :cut])

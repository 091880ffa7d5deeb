"""A rotation that reuses the factors of its latest call returns what a new one returns, whatever was called before."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.positions import DynamicScaling, LinearScaling, Rotary

HEAD_DIM = 14
LAYOUTS = pytest.mark.parametrize("layout", ["halves", "pairs"])

offsets = st.tuples(st.just("offset"), st.integers(-3, 5), st.integers(0, 4))
positions = st.tuples(st.just("positions"), st.lists(st.integers(0, 5), min_size=1, max_size=3))
calls = st.lists(
    st.tuples(st.one_of(offsets, positions), st.sampled_from([torch.float32, torch.bfloat16, torch.float64])),
    min_size=1,
    max_size=8,
)


def rotate(rotary, call, dtype):
    kind, *arguments = call
    length = arguments[1] if kind == "offset" else len(arguments[0])
    tokens = torch.randn(2, length, HEAD_DIM, generator=torch.Generator().manual_seed(length)).to(dtype)
    if kind == "offset":
        return rotary(tokens, offset=arguments[0])
    return rotary.rotate_at(tokens, torch.tensor(arguments[0], dtype=torch.long))


@LAYOUTS
@pytest.mark.parametrize("scaling", [None, LinearScaling(2.0), DynamicScaling(2.0, 3)])
@given(calls)
def test_earlier_calls_have_no_influence(layout, scaling, made):
    def make():
        return Rotary(HEAD_DIM, layout=layout, rotated=10, scaling=scaling)

    used = make()
    for call, dtype in made:
        assert torch.equal(rotate(used, call, dtype), rotate(make(), call, dtype))


def test_one_offset_is_not_two_positions():
    rotary, tokens = Rotary(HEAD_DIM), torch.randn(1, HEAD_DIM)
    rotary(tokens, offset=5)
    assert rotary.rotate_at(torch.randn(3, HEAD_DIM), torch.tensor([5, 6, 7])).shape == (3, HEAD_DIM)


def test_factors_of_inference_mode_serve_training():
    rotary, tokens = Rotary(HEAD_DIM), torch.randn(3, HEAD_DIM)
    with torch.inference_mode():
        rotary(tokens)
    trained = tokens.clone().requires_grad_()
    rotary(trained).sum().backward()
    assert trained.grad is not None


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda rotary: pickle.loads(pickle.dumps(rotary))])
def test_copies_hold_no_factors(duplicate):
    rotary, tokens = Rotary(HEAD_DIM), torch.randn(3, HEAD_DIM)
    expected = rotary(tokens, offset=2)
    copied = duplicate(rotary)
    assert copied._latest is None
    assert torch.equal(copied(tokens, offset=2), expected)

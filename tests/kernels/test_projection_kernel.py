"""Linear layers of few tokens: the native kernel against float64, at sizes that divide nothing.

The error of a sum of K products in float32 is at most (K + 4) eps times the sum of their absolute values, in any order:
Higham 2002, "Accuracy and stability of numerical algorithms", section 3.5. A result in bfloat16 is rounded once more.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypothesis_examples import examples
from long_lengths import many
from regard.kernels.extension import native
from regard.kernels.operators.projection_op import MAX_TOKENS, can_project, project
from sampled_parameters import parametrize_sample

pytestmark = pytest.mark.skipif(native is None, reason="the kernels are not built")

EPS = 2.0**-23
HALF_EPS = 2.0**-8


def make_problem(rows, inputs, outputs, dtype, *, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens, weight = (torch.randn(size, inputs, generator=generator).to(dtype) for size in (rows, outputs))
    return tokens, weight, torch.randn(outputs, generator=generator).to(dtype) if bias else None


def to_numpy(tensor):
    return tensor.to(torch.float64).numpy()


def run_native(tokens, weight, bias, threads=1):
    output = tokens.new_full((tokens.shape[0], weight.shape[0]), float("nan"))
    native.project(tokens, weight, None, bias, output, threads=threads)
    return output


def check(tokens, weight, bias):
    matrix = to_numpy(weight)
    added = 0 if bias is None else to_numpy(bias)
    expected = to_numpy(tokens) @ matrix.T + added
    size = np.abs(to_numpy(tokens)) @ np.abs(matrix.T) + np.abs(added)
    bound = (weight.shape[1] + 4) * EPS * size
    if tokens.dtype == torch.bfloat16:
        bound = bound + HALF_EPS * np.abs(expected)
    found = to_numpy(run_native(tokens, weight, bias))
    assert (np.abs(found - expected) <= bound).all()


@parametrize_sample(
    "rows, sizes, dtype",
    [1, 2, 3, 4, 5, 6, 7, 8, 11, MAX_TOKENS, 19],
    [(1, 1), (13, 7), (61, 5), (131, 67), (257, 3), (64, 8), (769, 503)],
    [torch.float32, torch.bfloat16],
)
def test_against_float64(rows, sizes, dtype):
    inputs, outputs = sizes
    check(*make_problem(rows, inputs, outputs, dtype))


@given(
    st.integers(1, 20), st.integers(1, 300), st.integers(1, 40), st.booleans(), st.booleans(), st.integers(0, 2**20)
)  # fmt: skip
def test_any_sizes(rows, inputs, outputs, half, bias, seed):
    dtype = torch.bfloat16 if half else torch.float32
    check(*make_problem(rows, inputs, outputs, dtype, bias=bias, seed=seed))


@examples(40, without_slow=4)
@given(
    st.integers(1, 20), st.one_of(st.tuples(st.integers(1, 40), many), st.tuples(many, st.integers(1, 40))),
    st.booleans(), st.integers(0, 2**20),
)  # fmt: skip
def test_many_inputs_or_outputs(rows, sizes, half, seed):
    check(*make_problem(rows, *sizes, torch.bfloat16 if half else torch.float32, seed=seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_depend_on_neither_threads_nor_other_tokens(dtype):
    tokens, weight, bias = make_problem(11, 331, 1031, dtype)
    together = run_native(tokens, weight, bias)
    for threads in (2, 3, 7):
        assert torch.equal(run_native(tokens, weight, bias, threads=threads), together)
    for row in range(len(tokens)):
        assert torch.equal(run_native(tokens[row : row + 1], weight, bias)[0], together[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_token_affects_its_row_only(bad, dtype):
    tokens, weight, bias = make_problem(5, 67, 71, dtype)
    clean = run_native(tokens, weight, bias)
    tokens[2, 66] = bad
    found = run_native(tokens, weight, bias)
    assert not found[2].isfinite().all()
    rows = [0, 1, 3, 4]
    assert torch.equal(found[rows], clean[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_around_the_arrays_is_not_read(dtype):
    """The arrays lie in larger ones that are NaN around them; scratch memory is NaN."""
    tokens, weight, bias = make_problem(3, 83, 13, dtype)
    expected = run_native(tokens, weight, bias)

    def embed(tensor):
        around = torch.full((tensor.numel() + 256,), float("nan"), dtype=tensor.dtype)
        inside = around[128 : 128 + tensor.numel()].view(tensor.shape)
        return inside.copy_(tensor)

    native.poison(True)
    try:
        assert torch.equal(run_native(*map(embed, (tokens, weight, bias))), expected)
    finally:
        native.poison(False)


def test_no_tokens_and_no_outputs():
    assert run_native(torch.ones(0, 5), torch.ones(3, 5), None).shape == (0, 3)
    assert run_native(torch.ones(2, 5), torch.ones(0, 5), None).shape == (2, 0)
    assert torch.equal(run_native(torch.ones(2, 0), torch.ones(3, 0), torch.ones(3)), torch.ones(2, 3))


def test_arguments_that_do_not_fit():
    tokens, weight, bias = make_problem(3, 17, 5, torch.float32)
    output = torch.empty(3, 5)
    for wrong, message in (
        ((tokens, weight, torch.ones(5), bias, output), "scale"),
        ((tokens, weight.double(), None, bias, output), "weight"),
        ((tokens.double(), weight, None, bias, output), "tokens"),
        ((tokens[:, 1:].contiguous(), weight, None, bias, output), "weight"),
        ((tokens, weight, None, bias[1:], output), "bias"),
        ((tokens, weight, None, bias, output[1:]), "output"),
        ((tokens, weight.t().contiguous().t(), None, bias, output), "weight"),
    ):
        with pytest.raises(ValueError, match=message):
            native.project(*wrong)


@torch.no_grad()
def test_when_it_is_used(monkeypatch):
    monkeypatch.setattr("regard.kernels.operators.projection_op.is_fast", lambda: True)
    tokens, weight, bias = make_problem(3, 331, 367, torch.float32)
    assert can_project(tokens, weight, bias)
    assert can_project(tokens[:, None], weight, None)
    assert not can_project(tokens, weight.to(torch.int8), bias)
    assert not can_project(tokens.repeat(6, 1), weight, bias)
    assert not can_project(tokens[:0], weight, bias)
    assert not can_project(tokens[:, 1:], weight, bias)
    assert not can_project(tokens.double(), weight.double(), bias)
    assert not can_project(tokens.bfloat16(), weight, bias)
    assert not can_project(tokens, weight.t().contiguous().t(), bias)
    assert not can_project(tokens, weight[:7], bias[:7])
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_project(tokens, weight, bias)
    with torch.enable_grad():
        assert can_project(tokens, weight, bias)
        assert not can_project(tokens, weight.clone().requires_grad_(), bias)


@torch.no_grad()
def test_tokens_of_any_shape_and_stride():
    tokens, weight, bias = make_problem(6, 331, 367, torch.float32)
    expected = run_native(tokens, weight, bias)
    assert torch.equal(project(tokens.view(2, 3, 331), weight, bias), expected.view(2, 3, 367))
    assert torch.equal(project(tokens.t().contiguous().t(), weight, bias), expected)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(331,), (1, 331), (6, 1, 331), (1, 2, 3, 331), (3, 1, 1, 2, 331)])
def test_all_dimensions_but_the_last_are_rows(shape):
    rows = torch.Size(shape[:-1]).numel()
    tokens, weight, bias = make_problem(rows, 331, 367, torch.float32)
    expected = run_native(tokens, weight, bias)
    assert torch.equal(project(tokens.view(shape), weight, bias), expected.view(*shape[:-1], 367))

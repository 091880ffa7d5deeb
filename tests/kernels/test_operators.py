"""The operators fulfil torch's contract: schema, fake, autograd; torch.compile traces them whole, correctly."""

from functools import partial

import pytest
import torch

import regard
from regard.errors import RefusedError
from regard.kernels import tracing
from script_process import run_script

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 6, 3, 7, 11, 5, 13
attend = partial(regard.attention, impl="native")


def tensors(dtype=torch.float64, queries=QUERIES, keys=KEYS, value_dim=VALUE_DIM):
    generator = torch.Generator().manual_seed(31)
    shapes = ((HEADS, queries, HEAD_DIM), (KEY_HEADS, keys, HEAD_DIM), (KEY_HEADS, keys, value_dim))
    # in the memory layout of layers, (batch, length, heads, head_dim)
    result = [torch.randn(BATCH, length, heads, size, generator=generator) for heads, length, size in shapes]
    return [tensor.to(dtype).transpose(1, 2).requires_grad_() for tensor in result]


def test_results_are_stored_with_length_before_heads():
    query, key, value = tensors()
    output = attend(query, key, value)
    assert output.transpose(1, 2).is_contiguous()
    gradients = torch.autograd.grad(output.sum(), (query, key, value))
    assert all(gradient.transpose(1, 2).is_contiguous() for gradient in gradients)


def test_second_derivatives_are_refused(without_shape_checks):
    query, key, value = tensors()
    (first,) = torch.autograd.grad(attend(query, key, value).square().sum(), query, create_graph=True)
    with pytest.raises(RefusedError, match=r"(?s)no second derivatives.*one backward pass.*create_graph.*reference"):
        first.sum().backward()


def test_inplace_change_before_backward_raises():
    query, key, value = tensors()
    twice = key * 2
    output = attend(query, twice, value)
    with torch.no_grad():
        twice.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_output_may_be_changed_in_place():
    query, key, value = tensors()
    output = attend(query, key, value)
    changed = torch.nn.functional.relu(output * 1, inplace=True)
    assert torch.equal(changed, output.relu())
    other = attend(query.detach(), key.detach(), value.detach())
    assert torch.equal(other.mul_(2), output * 2)


@pytest.mark.parametrize(
    "checks", ["some", *(pytest.param(checks, marks=pytest.mark.slow) for checks in ("fixed", "any", "other"))]
)
def test_compiles_to_one_graph(checks):
    """In a separate process, since torch cannot trace through the suite's shape checks. See torch_compile_checks.py."""
    run_compile_checks(checks)


@pytest.mark.slow
def test_inductor_gives_the_same_results():
    run_compile_checks("inductor")


def run_compile_checks(checks):
    script = f"""
import sys, warnings
from kernels.torch_compile_checks import main
warnings.simplefilter("ignore")
sys.exit(main({checks!r}))
"""
    result = run_script(script, timeout=1200.0)  # "any" alone takes 220 s on an idle machine of 2 cores
    assert result.returncode == 0, result.stdout + result.stderr


def test_is_eager_detects_tracing():
    plain = torch.randn(3)
    assert tracing.is_eager(plain, None, torch.nn.Parameter(plain))
    with torch.overrides.TorchFunctionMode():
        assert tracing.is_eager(plain)
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert not tracing.is_eager(plain)
    assert not tracing.is_eager(plain.as_subclass(type("Other", (torch.Tensor,), {})))

"""The operators fulfil torch's contract: schema, fake, autograd; torch.compile traces them whole, correctly."""

from functools import partial

import pytest
import torch

import regard
from kernels.opcheck_cases import parametrize_opcheck
from regard import masks, positions
from regard.errors import RefusedError
from regard.kernels import tracing
from regard.kernels.operators import attention_op
from regard.kernels.operators.kernel_arguments import KernelArguments, to_kernel_arguments
from regard.validation import make_request
from script_process import run_script

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 6, 3, 7, 11, 5, 13
attend = partial(regard.attention, impl="native")
SUMMED = ("bias", "table", "sinks")


def random_bools(*shape, chance=0.7, seed=29):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < chance


def tensors(dtype=torch.float64, queries=QUERIES, keys=KEYS, value_dim=VALUE_DIM):
    generator = torch.Generator().manual_seed(31)
    shapes = ((HEADS, queries, HEAD_DIM), (KEY_HEADS, keys, HEAD_DIM), (KEY_HEADS, keys, value_dim))
    # in the memory layout of layers, (batch, length, heads, head_dim)
    result = [torch.randn(BATCH, length, heads, size, generator=generator) for heads, length, size in shapes]
    return [tensor.to(dtype).transpose(1, 2).requires_grad_() for tensor in result]


def make_kernel_arguments(mask=None, bias=None, dropout=0.0, softcap=None, sinks=None, **sizes) -> KernelArguments:
    terms = {"mask": mask, "bias": bias, "scale": None, "softcap": softcap, "sinks": sinks, "dropout": dropout}
    return to_kernel_arguments(make_request(*tensors(**sizes), **terms))


def leaf(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(37)).requires_grad_()


OPERATOR_ARGUMENTS = {
    "nothing": lambda: make_kernel_arguments(),
    "half precision": lambda: make_kernel_arguments(dtype=torch.float16),
    "band and interval": lambda: make_kernel_arguments(
        masks.window(5, 1) & masks.padding([11, 4]) & masks.padding([7, 9], side="left")
    ),
    "cells": lambda: make_kernel_arguments(masks.keep(random_bools(BATCH, 1, QUERIES, KEYS))),
    "tiles": lambda: make_kernel_arguments(
        masks.documents(torch.arange(67) // 5) | masks.global_tokens([0]), queries=67, keys=67, value_dim=2
    ),
    "bias": lambda: make_kernel_arguments(masks.causal(), leaf(1, HEADS, 1, KEYS)),
    "bias of another dtype": lambda: make_kernel_arguments(bias=torch.randn(BATCH, 1, QUERIES, KEYS).requires_grad_()),
    "table": lambda: make_kernel_arguments(masks.causal())._replace(table=leaf(HEADS, 2 * KEYS), table_lowest=-KEYS),
    "table of all heads": lambda: make_kernel_arguments(bias=positions.ALiBi(1)),
    "dropout": lambda: make_kernel_arguments(masks.causal(), dropout=0.3),
    "softcap": lambda: make_kernel_arguments(masks.causal(), leaf(1, HEADS, 1, KEYS), softcap=0.75),
    "sinks": lambda: make_kernel_arguments(masks.causal(), sinks=leaf(1, HEADS, 1, 1)),
    "sinks of queries": lambda: make_kernel_arguments(
        masks.window(2, 1), sinks=leaf(BATCH, HEADS, QUERIES, 1), softcap=0.75, dropout=0.3
    ),
    "no keys": lambda: make_kernel_arguments(masks.causal(), keys=0, sinks=leaf(1, HEADS, 1, 1)),
    "no queries": lambda: make_kernel_arguments(masks.causal(), queries=0),
    "no values": lambda: make_kernel_arguments(masks.causal(), leaf(1, 1, QUERIES, 1), value_dim=0),
}


def sizes_of(name):
    return {
        "half precision": {"dtype": torch.float16},
        "tiles": {"queries": 67, "keys": 67, "value_dim": 2},
        "no keys": {"keys": 0},
        "no queries": {"queries": 0},
        "no values": {"value_dim": 0},
    }.get(name, {})


@parametrize_opcheck(OPERATOR_ARGUMENTS, default_kinds=["tiles", "bias", "table", "sinks"])
def test_operator_passes_opcheck(name, utilities, without_shape_checks):
    inputs = (*tensors(**sizes_of(name)), *OPERATOR_ARGUMENTS[name]())
    torch.library.opcheck(torch.ops.regard.attention.default, inputs, test_utils=utilities)


# Tracing the other operator traces its backward pass, too.
@parametrize_opcheck(OPERATOR_ARGUMENTS, default_kinds=["bias"])
def test_backward_operator_passes_opcheck(name, utilities, without_shape_checks):
    inputs = [
        part.detach() if isinstance(part, torch.Tensor) else part
        for part in (*tensors(**sizes_of(name)), *OPERATOR_ARGUMENTS[name]())
    ]
    output, lse, *others = torch.ops.regard.attention.default(*inputs)
    expected = [inputs[3 + KernelArguments._fields.index(kind)] is not None for kind in SUMMED]
    for grad_lse in (None, torch.randn_like(lse)):
        torch.library.opcheck(
            torch.ops.regard.attention_backward.default,
            (torch.randn_like(output), grad_lse, *inputs[:3], output, *others, *expected, *inputs[3:]),
            test_utils=utilities,
        )


@pytest.mark.parametrize(
    "name", [name for name in OPERATOR_ARGUMENTS if not name.startswith(("no ", "half", "tiles", "bias of another"))]
)
@pytest.mark.parametrize(
    "fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["along a direction", "per element"]
)
@pytest.mark.parametrize("path", ["operator", "eager"])
def test_gradients_agree_with_finite_differences(name, path, fast, without_shape_checks):
    arguments = OPERATOR_ARGUMENTS[name]()
    trained = [kind for kind in SUMMED if getattr(arguments, kind) is not None]
    function = torch.ops.regard.attention.default if path == "operator" else attention_op.ATTENTION.compute_with_grad

    def both(query, key, value, *rest):
        output, lse, *_ = function(query, key, value, *arguments._replace(**dict(zip(trained, rest, strict=True))))
        return output, lse.masked_fill(lse == -torch.inf, 0.0)

    leaves = [getattr(arguments, kind).detach().requires_grad_() for kind in trained]
    assert torch.autograd.gradcheck(both, (*tensors(), *leaves), fast_mode=fast, atol=1e-8, rtol=1e-6)


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
    result = run_script(script)
    assert result.returncode == 0, result.stdout + result.stderr


def test_is_eager_detects_tracing():
    plain = torch.randn(3)
    assert tracing.is_eager(plain, None, torch.nn.Parameter(plain))
    with torch.overrides.TorchFunctionMode():
        assert tracing.is_eager(plain)
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert not tracing.is_eager(plain)
    assert not tracing.is_eager(plain.as_subclass(type("Other", (torch.Tensor,), {})))

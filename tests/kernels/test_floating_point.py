"""Results do not depend on a thread's rounding mode, and kernels do not change it.

A processor has a rounding mode, and a mode that flushes subnormal numbers to 0, for each thread.
"""

import ctypes
import platform
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch

import regard
from regard.conformance.oracles import attention as oracle
from regard.kernels.operators import cross_entropy_op, dropout_op  # noqa: F401  (they define operators)

# C's FE_UPWARD, FE_DOWNWARD and FE_TOWARDZERO.
ON_ARM = platform.machine().lower() in ("arm64", "aarch64")
MODES = (0x400000, 0x800000, 0xC00000) if ON_ARM else (0x800, 0x400, 0xC00)
C = ctypes.CDLL(None)
LENGTH = 521  # enough for a second thread to take part


@contextmanager
def flush_subnormals():
    torch.set_flush_denormal(True)
    try:
        yield
        assert (torch.tensor([1e-39]) * 0.5).item() == 0  # the mode is still set
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def rounding_mode(mode):
    before = C.fegetround()
    assert C.fesetround(mode) == 0
    try:
        yield
        assert C.fegetround() == mode
    finally:
        C.fesetround(before)


@pytest.fixture(autouse=True)
def default_results():
    """Results of two threads, which start before a test changes its rounding mode: new threads would inherit it."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield compute_results()
    torch.set_num_threads(before)


@cache  # so that they are drawn before a rounding mode changes
def tokens(batch=2, heads=4, of_value=1.0):
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(batch, heads, LENGTH, 19, generator=generator) for _ in range(3))
    return query, key, value * of_value


def tiny_values():
    """Subnormal values, with which a processor takes a hundred times as long, so there are only two heads."""
    return tokens(batch=1, heads=2, of_value=1e-39)


def compute_results():
    """Return the results of each operation, forward and backward; torch's computations around them do not round."""
    leaves = [tensor.detach().requires_grad_() for tensor in tokens()]
    output = regard.attention(*leaves, scale=0.3, impl="native")
    observation = regard.observe(*leaves, scale=0.3, impl="native")
    results = [output, observation.received, observation.entropy]
    decoding_output = regard.attention(leaves[0][:, :, -1:].detach(), *leaves[1:], impl="native")
    logits = tokens()[2].view(-1, 19).detach().requires_grad_()
    loss, _ = torch.ops.regard.cross_entropy.default(logits, torch.arange(8 * LENGTH) % 19, 0.1, -1)
    dropout_output = torch.ops.regard.dropout.default(leaves[2], 0.25, torch.tensor(7))
    found = [*results, decoding_output, loss, dropout_output]
    for result in results:
        found += torch.autograd.grad(result, leaves, torch.ones_like(result), retain_graph=True)
    found += torch.autograd.grad(loss, logits, torch.ones_like(loss))
    return [tensor.detach() for tensor in found]


def equal_bits(first, second):
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_same_bits_on_any_thread():
    """Repeated often enough for each thread to have computed each task."""
    query, key, value = tiny_values()
    with flush_subnormals():
        actual = [regard.attention(query, key, value, impl="native") for _ in range(20)]
    assert all(torch.equal(each, actual[0]) for each in actual)


def test_subnormal_numbers_are_not_flushed():
    query, key, value = tiny_values()
    with flush_subnormals():
        output = regard.attention(query, key, value, impl="native")
    exact, _ = oracle.attention(*(tensor.double().numpy() for tensor in (query, key, value)))
    # Each product of a weight with a value below 5e-39 may be rounded to a multiple of 2^-149.
    bound = LENGTH * (2.0**-149 + 5e-39 * torch.finfo(torch.float32).eps)
    np.testing.assert_allclose(output.double().numpy(), exact, rtol=0, atol=bound)


def test_flush_mode_changes_no_result(default_results):
    """Weights and gradients are far below the smallest normal number, for any inputs."""
    with flush_subnormals():
        actual = compute_results()
    assert equal_bits(actual, default_results)


@pytest.mark.parametrize("mode", MODES)
def test_rounding_mode_changes_no_result(mode, default_results):
    with rounding_mode(mode):
        actual = compute_results()
    assert equal_bits(actual, default_results)


def test_same_bits_in_every_python_thread():
    """A thread inherits the rounding mode of the thread that starts it, and may change it."""
    tensors = tiny_values()
    exact = regard.attention(*tensors, impl="native")

    def work(flushing):
        torch.set_num_threads(2)
        torch.set_flush_denormal(flushing)
        return regard.attention(*tensors, impl="native")

    with flush_subnormals(), ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(work, [True, False] * 4))
    assert all(torch.equal(each, exact) for each in actual)

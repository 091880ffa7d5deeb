"""Huge pages for results: which memory is advised."""

import pytest
import torch

from huge_page_advice import LINUX, MEBIBYTE, is_advised, new_memory
from regard.kernels.extension import native

pytestmark = LINUX


def write_to(output):
    """Compute attention of values of 1, so that each element of the output (batch, heads, queries, head_dim) is 1."""
    query = torch.zeros(output.shape)
    key, value = torch.zeros(1, output.shape[1], 1, output.shape[3]), torch.ones(1, output.shape[1], 1, output.shape[3])
    lse = torch.empty(output.shape[:3])
    native.forward(query, key, value, output, lse, threads=2)
    assert (output == 1).all()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_large_results_are_advised_in_any_order_of_their_axes(order):
    memory = new_memory(8 * MEBIBYTE, torch.float32)
    write_to(memory.view(1, 8, 8192, 32).permute(order))
    assert is_advised(memory.data_ptr() + 4 * MEBIBYTE)


def test_small_results_are_not():
    memory = new_memory(3 * MEBIBYTE, torch.float32)
    write_to(memory.view(1, 8, -1, 32))
    assert not is_advised(memory.data_ptr() + MEBIBYTE)


def test_memory_between_the_rows_of_a_result_is_not():
    memory = new_memory(32 * MEBIBYTE, torch.float32)
    write_to(memory.view(1, 8, -1, 128)[..., :32])
    assert not is_advised(memory.data_ptr() + 16 * MEBIBYTE)

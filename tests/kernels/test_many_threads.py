"""The bits of results at 1 to 128 threads, more than any machine here has cores: tasks divide sums, and not threads.

Nine heads are computed whole by up to two threads, and by ranges of keys by more: see ``csrc/attention/backward.cpp``.
"""

import pytest
import torch

import regard
from any_threads import assert_same_bits
from regard import masks

THREADS = (1, 2, 3, 64, 128)
MASKS = {
    "none": lambda: None,
    "causal": masks.causal,
    "window": lambda: masks.window(131, 0),
    "documents": lambda: masks.documents(torch.arange(701) // 193),
    "gap": lambda: masks.keep(((torch.arange(701) < 200) | (torch.arange(701) > 500)).expand(701, 701)),
    "empty": lambda: masks.padding(torch.tensor([0])),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("key_heads", [9, 3])
def test_gradients(name, dtype, key_heads):
    torch.manual_seed(0)
    query = torch.randn(1, 9, 701, 16, dtype=dtype, requires_grad=True)
    key, value = (torch.randn(1, key_heads, 701, 16, dtype=dtype, requires_grad=True) for _ in range(2))
    cotangent = torch.randn(1, 9, 701, 16, dtype=dtype)

    def compute():
        output = regard.attention(query, key, value, mask=MASKS[name](), impl="native")
        return [output, *torch.autograd.grad(output, (query, key, value), cotangent)]

    assert_same_bits(compute, THREADS)


@pytest.mark.parametrize("batch", [1, 5])
def test_gradients_of_sinks_and_of_a_trained_bias(batch):
    """The gradient of a bias that heads share is a sum over them, in one order."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(batch, 9, 331, 16, requires_grad=True) for _ in range(3))
    bias, sinks = torch.randn(1, 1, 331, 331, requires_grad=True), torch.randn(9, requires_grad=True)

    def compute():
        output = regard.attention(query, key, value, bias=bias, impl="native")
        with_sinks = regard.attention(query, key, value, mask=masks.causal(), sinks=sinks, impl="native")
        return torch.autograd.grad(
            (output.square().sum() + with_sinks.square().sum()), (query, key, value, bias, sinks)
        )

    assert_same_bits(compute, THREADS)


@pytest.mark.parametrize("keys", [511, 4099])
@torch.no_grad()
def test_few_queries_and_many_keys(keys):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 8, 1, 16), *(torch.randn(2, 2, keys, 16) for _ in range(2))
    assert_same_bits(lambda: regard.attention(query, key, value, impl="native"), THREADS)

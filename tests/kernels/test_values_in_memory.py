"""Tensors whose memory differs from their value, or has odd addresses, give the results of ordinary tensors.

torch may negate lazily (the memory of a conjugate's imaginary part has the opposite sign), and may allocate no memory
for zeros. Buffers and columns of structured arrays may place numbers at any byte.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.conformance.oracles import attention as oracle
from regard.kernels import extension
from regard.kernels.implementations.mlp_score import ADDITIVE
from regard.kernels.implementations.sigmoid import SIGMOID_ATTENTION
from regard.kernels.implementations.talking_heads import TALKING_HEADS
from regard.kernels.operators import (
    cross_entropy_op,
    dropout_op,
    paged_attention_op,
)
from regard.kernels.operators.kernel_arguments import KernelArguments
from regard.layers import projection

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 4, 2, 5, 71, 19, 13


def random_tensor(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def ordinary(tensor):
    return tensor.clone()


def lazily_negated(tensor):
    """Return the same values as the imaginary part of a conjugate: memory contains their negatives."""
    late = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert late.is_neg()
    return late


def misaligned(tensor):
    """Return the same values at an address that is off by one byte."""
    odd = torch.frombuffer(bytearray(tensor.nbytes + 1), dtype=tensor.dtype, offset=1, count=tensor.numel())
    odd = odd.view(tensor.shape).copy_(tensor)
    assert odd.data_ptr() % tensor.itemsize != 0
    return odd


def tokens(queries=QUERIES):
    shapes = (HEADS, queries, HEAD_DIM), (KEY_HEADS, KEYS, HEAD_DIM), (KEY_HEADS, KEYS, VALUE_DIM)
    return [random_tensor(BATCH, *shape) for shape in shapes]


def make_leaves(store, *tensors):
    return [store(tensor).requires_grad_() for tensor in tensors]


def attention(store):
    leaves = make_leaves(store, *tokens(), random_tensor(1, HEADS, QUERIES, KEYS))
    output = regard.attention(*leaves[:3], bias=leaves[3], mask=masks.causal(), impl="native")
    return [output, *torch.autograd.grad(output, leaves, store(random_tensor(*output.shape)))]


def observe(store):
    leaves = make_leaves(store, *tokens())
    observation = regard.observe(*leaves, top=3, rows=[1, 4], impl="native")
    results = [
        observation.output,
        observation.lse,
        observation.entropy,
        observation.received,
        observation.top_weights,
        observation.rows,
    ]
    return [
        *results,
        *torch.autograd.grad(results, leaves, [store(random_tensor(*result.shape)) for result in results]),
    ]


def decode(store):
    return [regard.attention(*map(store, tokens(queries=1)), mask=masks.padding([KEYS, 53]), impl="native")]


def pages(store):
    key, value = (random_tensor(12, KEY_HEADS, 16, width) for width in (HEAD_DIM, VALUE_DIM))
    table, lengths = torch.arange(10).view(2, 5), torch.tensor([71, 53])
    return [
        paged_attention_op.paged_attention(
            store(tokens()[0]),
            paged_attention_op.PagedKeysValues(store(key), store(value), table, lengths),
            KernelArguments(scale=0.25),
        )
    ]


def additive(store):
    query, key, value = tokens()
    leaves = make_leaves(store, query, key, random_tensor(HEADS, HEAD_DIM), value)
    output = ADDITIVE(
        *leaves, terms=KernelArguments(table=store(random_tensor(HEADS, KEYS + QUERIES)), table_lowest=1 - KEYS)
    )
    return [output, *torch.autograd.grad(output, leaves, store(random_tensor(*output.shape)))]


def sigmoid(store):
    leaves = make_leaves(store, *tokens())
    output = SIGMOID_ATTENTION(
        *leaves, None, terms=KernelArguments(table=store(random_tensor(HEADS, KEYS + QUERIES)), table_lowest=1 - KEYS)
    )
    return [output, *torch.autograd.grad(output, leaves, store(random_tensor(*output.shape)))]


def talking_heads(store):
    leaves = make_leaves(store, *tokens(), *(random_tensor(HEADS, HEADS) for _ in range(2)))
    output = TALKING_HEADS(
        *leaves, terms=KernelArguments(table=store(random_tensor(HEADS, KEYS + QUERIES)), table_lowest=1 - KEYS)
    )
    return [output, *torch.autograd.grad(output, leaves, store(random_tensor(*output.shape)))]


def cross_entropy(store):
    (logits,) = make_leaves(store, random_tensor(7, 101))
    loss = cross_entropy_op.cross_entropy(logits, torch.arange(7) * 11, smoothing=0.1, ignored=0)
    return [loss, *torch.autograd.grad(loss, logits, store(random_tensor(7)))]


def dropout(store):
    torch.manual_seed(3)
    (leaf,) = make_leaves(store, random_tensor(7, 101))
    output = dropout_op.drop(leaf, 0.3)
    return [output, *torch.autograd.grad(output, leaf, store(random_tensor(7, 101)))]


OPERATIONS = [attention, observe, decode, pages, additive, sigmoid, talking_heads, cross_entropy, dropout]


@pytest.mark.parametrize("store", [lazily_negated, misaligned])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_read_values_not_memory(operation, store):
    for ours, exact in zip(operation(store), operation(ordinary), strict=True):
        assert torch.equal(ours, exact)


def test_lazy_negation_agrees_with_the_oracle():
    query, key, value = tokens()
    output = regard.attention(*map(lazily_negated, (query, key, value)), impl="native")
    exact, _ = oracle.attention(*(tensor.double().numpy() for tensor in (query, key, value)))
    # Sums of HEAD_DIM and KEYS products of numbers below 5, in float32.
    np.testing.assert_allclose(output.numpy(), exact, rtol=0, atol=(HEAD_DIM + KEYS) * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("rows", [3, 67])  # with 67 oneDNN may be used
def test_linear_layer_reads_values_not_memory(rows):
    layer = nn.Linear(512, 512)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    layer.weight, layer.bias = (nn.Parameter(lazily_negated(parameter)) for parameter in (weight, bias))
    (inputs,) = make_leaves(lazily_negated, random_tensor(rows, 512))
    upstream = random_tensor(rows, 512)
    output = projection.linear_activation(inputs, layer)
    actual = [output, *torch.autograd.grad(output, (inputs, layer.weight), lazily_negated(upstream))]
    x, w, b, dy = (tensor.detach().double() for tensor in (inputs, weight, bias, upstream))
    with torch.no_grad():
        actual.append(projection.linear_activation(inputs, layer, "gelu"))
    exacts = [x @ w.T + b, dy @ w, dy.T @ x, nn.functional.gelu(x @ w.T + b)]
    for ours, exact in zip(actual, exacts, strict=True):
        assert (ours.double() - exact).abs().max() <= 512 * torch.finfo(torch.float32).eps * exact.abs().max()


def test_zeros_without_memory():
    query, key, _ = tokens()
    zeros = torch._efficientzerotensor((BATCH, KEY_HEADS, KEYS, VALUE_DIM))
    assert zeros.data_ptr() == 0
    assert torch.count_nonzero(regard.attention(query, key, zeros, impl="native")) == 0
    output = regard.attention(query.requires_grad_(), key, random_tensor(*zeros.shape), impl="native")
    (of_query,) = torch.autograd.grad(output, query, torch._efficientzerotensor(tuple(output.shape)))
    assert torch.count_nonzero(of_query) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_misaligned_tensors_of_other_dtypes_and_strides(dtype):
    query, key, value = (tensor.to(dtype) for tensor in tokens())
    turned = [misaligned(tensor.transpose(1, 2).contiguous()).transpose(1, 2) for tensor in (query, key, value)]
    bias = random_tensor(1, 1, 1, KEYS).to(dtype)
    wide = misaligned(bias).expand(BATCH, HEADS, QUERIES, KEYS)  # copies the stored values, not the negated ones
    output = regard.attention(*turned, bias=wide, impl="native")
    assert torch.equal(output, regard.attention(query, key, value, bias=bias, impl="native"))


@pytest.mark.parametrize("lengths", [misaligned(torch.tensor([53, 53])), torch.tensor([53, 1, 53])[::2]])
def test_misaligned_and_strided_index_arrays(lengths):
    query, key, value = tokens()
    actual, exact = torch.empty(BATCH, HEADS, QUERIES, VALUE_DIM), torch.empty(BATCH, HEADS, QUERIES, VALUE_DIM)
    for stop in (lengths, torch.tensor(53).expand(BATCH)):
        extension.native.forward(query, key, value, actual, None, stop=stop)
        extension.native.forward(query, key[:, :, :53], value[:, :, :53], exact, None)
        assert (actual - exact).abs().max() <= 53 * torch.finfo(torch.float32).eps


def test_misaligned_numpy_arrays():
    """A column of a structured array, whose row stride is not a multiple of the element size."""
    query, key, value = (tensor.numpy() for tensor in tokens())
    records = np.zeros(BATCH, dtype=[("flag", "u1"), ("value", "f4", value.shape[1:])])
    records["value"] = value
    actual = regard.attention(query, key, records["value"])
    np.testing.assert_array_equal(actual, regard.attention(query, key, value))
    read = partial(np.frombuffer, dtype=np.float32, offset=1)
    odd = [read(b"\0" + array.tobytes()).reshape(array.shape) for array in (query, key, value)]
    np.testing.assert_array_equal(regard.attention(*odd), regard.attention(query, key, value))


def test_misaligned_output_is_refused():
    query, key, value = tokens()
    output = misaligned(torch.zeros(BATCH, HEADS, QUERIES, VALUE_DIM))
    with pytest.raises(ValueError, match=r"output: it is to be written and its memory is not aligned"):
        extension.native.forward(query, key, value, output, None)

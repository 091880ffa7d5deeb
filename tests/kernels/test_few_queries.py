"""Few queries and many keys: each tile of keys is packed by the one task that reads it, into memory that is reused."""

import pytest
import torch

import regard
from regard import masks
from sampled_parameters import parametrize_sample

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 3, 61, 1031, 19, 37
"""More than 8 tiles of keys, the last of which is partial, and several groups of tiles."""

MASKS = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.window(200, 0),
    "padding": masks.padding([KEYS, 401]),
    "left padding": masks.padding([7, 640], side="left"),
    "tiles with gaps": masks.documents(torch.arange(KEYS) // 130 % 3),
    "nothing": masks.padding([0, KEYS]),
    "of heads": masks.keep(torch.rand(1, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(2)) < 0.01),
}
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 0.03, torch.float16: 4e-3, torch.float64: 1e-12}


def tensors(dtype):
    generator = torch.Generator().manual_seed(3)
    shapes = ((QUERIES, HEAD_DIM), (KEYS, HEAD_DIM), (KEYS, VALUE_DIM))
    return [torch.randn(BATCH, HEADS, *shape, generator=generator).bfloat16().to(dtype) for shape in shapes]


@parametrize_sample("mask, dtype", MASKS, list(TOLERANCES), one_in=2)
def test_outputs_and_gradients_are_those_of_the_reference(mask, dtype):
    inputs = [one.requires_grad_() for one in tensors(dtype)]
    exact = [one.detach().double().requires_grad_() for one in inputs]
    output = regard.attention(*inputs, mask=MASKS[mask], impl="native")
    expected = regard.attention(*exact, mask=MASKS[mask], impl="reference")
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    found = [output, *torch.autograd.grad(output, inputs, upstream.to(dtype))]
    wanted = [expected, *torch.autograd.grad(expected, exact, upstream)]
    for one, other in zip(found, wanted, strict=True):
        largest = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one.double(), other, rtol=0, atol=TOLERANCES[dtype] * largest)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("poisoned", [None, 0, 640, KEYS - 1])
def test_the_same_bits_as_among_more_queries(dtype, dropout, poisoned):
    """With 100 queries keys are packed beforehand. Padding keys for all, and a key with NaN that all queries see."""
    query, key, value = tensors(dtype)
    query = query.repeat(1, 1, 2, 1)[:, :, :100]
    if poisoned is not None:
        value[0, 1, poisoned, 5] = torch.nan
    mechanism = regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM, dropout=dropout).train()
    results = []
    for queries in (61, 100):
        torch.manual_seed(5)
        results.append(mechanism(query[:, :, :queries], key, value, masks.padding([KEYS, 900])))
    torch.testing.assert_close(results[0], results[1][:, :, :61], rtol=0, atol=0, equal_nan=True)
    assert bool(results[0][0, 1].isnan().all()) == (poisoned is not None)
    assert results[0][1].isfinite().all()


def test_the_bits_do_not_depend_on_the_threads():
    inputs, threads = tensors(torch.float32), torch.get_num_threads()
    results = []
    for count in (1, 2, 3, threads):
        torch.set_num_threads(count)
        results.append(regard.attention(*inputs, mask=MASKS["tiles with gaps"], impl="native"))
    torch.set_num_threads(threads)
    assert all(torch.equal(one, results[0]) for one in results)

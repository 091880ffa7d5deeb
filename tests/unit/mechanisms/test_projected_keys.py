"""Keys projected once for many calls of a hidden-layer score: the same results, and the same promises."""

import pytest
import torch

import regard
from regard import masks
from regard.errors import DtypeError, ShapeError

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM, INNER = 2, 6, 5, 11, 7, 3, 13
MASK = masks.padding([KEYS, 4])
NAMES, IMPLS = ("additive", "luong_concat"), ("native", "reference", "auto")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def build_mechanism(name, impl="auto", dtype=torch.float32):
    return regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM, inner=INNER, impl=impl).to(dtype)


def make_inputs(dtype=torch.float32, key_heads=HEADS):
    shapes = (HEADS, QUERIES, HEAD_DIM), (key_heads, KEYS, HEAD_DIM), (key_heads, KEYS, VALUE_DIM)
    return tuple(torch.randn(BATCH, *shape).to(dtype).requires_grad_() for shape in shapes)


def output_and_gradients(mechanism, tensors, *, prepare):
    """Return the output and every gradient."""
    options = {"projected_keys": mechanism.project_keys(tensors[1])} if prepare else {}
    output = mechanism(*tensors, MASK, **options)
    return output, *torch.autograd.grad(output.square().sum(), [*tensors, *mechanism.parameters()])


@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", NAMES)
def test_projected_keys_change_no_bit(name, impl, dtype, key_heads):
    mechanism, tensors = build_mechanism(name, impl, dtype), make_inputs(dtype, key_heads)
    plain, projected_keys = (output_and_gradients(mechanism, tensors, prepare=prepare) for prepare in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(plain, projected_keys, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_single_queries_equal_all_at_once(name):
    mechanism, (query, key, value) = build_mechanism(name, dtype=torch.float64), make_inputs(torch.float64)
    projected = {"projected_keys": mechanism.project_keys(key)}
    steps = [mechanism(query[:, :, row : row + 1], key, value, MASK, **projected) for row in range(QUERIES)]
    whole = mechanism(query, key, value, MASK)
    torch.testing.assert_close(torch.cat(steps, dim=2), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", NAMES)
def test_masked_nonfinite_keys_have_no_influence(name, impl):
    mechanism, tensors, results = build_mechanism(name, impl), make_inputs(), []
    for fill in (0.0, torch.nan):
        query, key, value = (tensor.detach().clone() for tensor in tensors)
        key[1, :, 4:] = value[1, :, 4:] = fill
        leaves = tuple(tensor.requires_grad_() for tensor in (query, key, value))
        results.append(output_and_gradients(mechanism, leaves, prepare=True))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_autocast_does_not_convert_projected_keys():
    mechanism, (query, key, value) = build_mechanism("additive"), make_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        projected_keys = mechanism.project_keys(key)
        output = mechanism(query, key, value, MASK, projected_keys=projected_keys)
        assert torch.equal(output, mechanism(query, key, value, MASK))
    assert projected_keys.dtype == torch.float32


def test_per_head_matrices_are_not_repeated_for_the_batch():
    """Otherwise its gradient would be stored once per batch entry: 4,096 times here, 1 GB."""
    mechanism = regard.mechanism("additive", heads=1, head_dim=256)
    query = torch.randn(4096, 1, 1, 256, requires_grad=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        mechanism.project_query(query).sum().backward()
    largest = max(event.self_cpu_memory_usage for event in profile.key_averages())
    assert largest < 2**26


@pytest.mark.parametrize("shape", [(2, 6, 11, 5), (2, 4, 11, 7), (2, 0, 11, 7), (6, 11, 7)])
def test_keys_of_other_sizes_are_refused(shape, without_shape_checks):
    with pytest.raises(ShapeError, match="keys do not fit"):
        build_mechanism("additive").project_keys(torch.zeros(shape))


@pytest.mark.parametrize("impl", IMPLS)
def test_projected_keys_of_other_shapes_or_dtypes_are_refused(impl):
    mechanism, (query, key, value) = build_mechanism("additive", impl), make_inputs()
    projected_keys = mechanism.project_keys(key)
    for wrong in (projected_keys[:, :, 1:], projected_keys[:1], projected_keys[..., 1:], projected_keys[:, :1]):
        with pytest.raises(ShapeError, match="projected keys"):
            mechanism(query, key, value, projected_keys=wrong)
    with pytest.raises(DtypeError, match="projected keys"):
        mechanism(query, key, value, projected_keys=projected_keys.double())

"""Arrays of other frameworks: inputs are read and results returned in the same memory and framework."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import regard
from regard import arrays, masks, positions
from regard.conformance.oracles import attention as oracle
from regard.errors import DtypeError, ShapeError

SHAPES = ((2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 13))
allowed = np.tri(5, 11, k=6, dtype=bool)


def numbers(dtype=np.float64):
    generator = np.random.default_rng(23)
    return [generator.standard_normal(shape).astype(dtype) for shape in SHAPES]


class ForeignArray:
    """A minimal array of another framework: DLPack, and a namespace with from_dlpack."""

    def __init__(self, tensor):
        self.tensor, self.shape, self.dtype = tensor, tensor.shape, tensor.dtype

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __array_namespace__(self):
        return SimpleNamespace(from_dlpack=lambda given: ForeignArray(torch.from_dlpack(given)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_numpy_arrays_return_numpy_arrays(dtype):
    query, key, value = numbers(dtype)
    output = regard.attention(query, key, value, mask=masks.causal())
    assert isinstance(output, np.ndarray)
    assert output.dtype == dtype
    exact, _ = oracle.attention(*(array.astype(np.float64) for array in (query, key, value)), allowed)
    np.testing.assert_allclose(output.astype(np.float64), exact, rtol=0, atol=32 * np.finfo(dtype).eps)


def test_observe_returns_numpy_arrays():
    query, key, value = numbers()
    observation = regard.observe(query, key, value, mask=masks.keep(allowed), top=3, rows=[0, 4])
    exact = oracle.observe(query, key, value, allowed, top=3, query_rows=(0, 4))
    for name in ("output", "lse", "entropy", "received", "top_weights", "rows", "max_score"):
        ours = getattr(observation, name)
        assert isinstance(ours, np.ndarray), name
        np.testing.assert_allclose(ours, getattr(exact, name), rtol=0, atol=1e-13, err_msg=name)
    assert isinstance(observation.top_keys, np.ndarray)
    assert regard.observe(query, key, value).rows is None


def test_foreign_arrays_return_foreign_arrays():
    tensors = [torch.from_numpy(array) for array in numbers()]
    foreign = [ForeignArray(tensor) for tensor in tensors]
    bias = torch.randn(1, 3, 1, 11, dtype=torch.float64)
    output = regard.attention(*foreign, bias=ForeignArray(bias))
    assert isinstance(output, ForeignArray)
    torch.testing.assert_close(output.tensor, regard.attention(*tensors, bias=bias), rtol=0, atol=1e-14)
    assert isinstance(regard.observe(*foreign).received, ForeignArray)
    assert regard.why(*foreign).reasons.keys() == regard.why(*tensors).reasons.keys()


@pytest.mark.parametrize("writeable", [True, False])
def test_arrays_are_read_without_copying(writeable):
    array = numbers(np.float32)[0].swapaxes(1, 2)
    array.flags.writeable = writeable
    tensor = arrays.tensor_from_numpy(array)
    assert tensor.data_ptr() == array.__array_interface__["data"][0]
    assert tensor.stride() == tuple(step // 4 for step in array.strides)
    assert array.flags.writeable == writeable


def test_tensor_keeps_the_memory_of_its_array_alive():
    array = np.arange(5.0)
    array.flags.writeable = False
    tensor = arrays.tensor_from_numpy(array)
    del array
    [np.full(5, np.nan) for _ in range(100)]  # would reuse freed memory
    assert tensor.tolist() == [0, 1, 2, 3, 4]


def test_read_only_reversed_and_byte_swapped_arrays():
    """Negative strides and the other byte order, which torch does not support. Warnings are errors here."""
    query, key, value = numbers()
    expected = regard.attention(query, key, value)
    turned = [np.ascontiguousarray(array[..., ::-1])[..., ::-1] for array in (query, key, value)]
    swapped = [array.astype(array.dtype.newbyteorder("S")) for array in (query, key, value)]
    for inputs in (turned, swapped):
        for array in inputs:
            array.flags.writeable = False
        np.testing.assert_array_equal(regard.attention(*inputs), expected)
    mask = np.tri(5, 11, k=6, dtype=bool)[:, ::-1]
    mask.flags.writeable = False
    assert masks.keep(mask) == masks.keep(mask.tolist())


def test_numpy_arrays_with_a_trainable_bias():
    bias = positions.T5Buckets(3)
    output = regard.attention(*numbers(np.float32), bias=bias)
    assert isinstance(output, np.ndarray)
    assert bias.weight.grad is None


def test_arrays_of_different_frameworks_are_refused(without_shape_checks):
    query, key, value = numbers()
    with pytest.raises(
        DtypeError, match=r"(?s)different frameworks.*one framework.*query numpy.ndarray, key torch.Tensor"
    ):
        regard.attention(query, torch.from_numpy(key), value)
    with pytest.raises(DtypeError, match=r"(?s)different frameworks.*bias torch.Tensor"):
        regard.attention(query, key, value, bias=torch.zeros(1, 1, 1, 11))
    with pytest.raises(DtypeError, match=r"(?s)key is not a tensor.*arrays of one framework.*ndarray"):
        regard.attention(torch.from_numpy(query), key, value)


def test_unreadable_arrays_are_refused(without_shape_checks):
    query, key, value = numbers()
    with pytest.raises(DtypeError, match=r"(?s)query is an array that cannot be read.*object.*to do"):
        regard.attention(query.astype(object), key.astype(object), value.astype(object))
    with pytest.raises(DtypeError, match=r"(?s)floating-point.*torch.int64"):
        regard.attention(*(array.astype(np.int64) for array in (query, key, value)))
    with pytest.raises(ShapeError, match="different lengths"):
        regard.attention(query, key, value[:, :, :3])

    class Traced:
        def __dlpack__(self, **options):
            raise BufferError("no numbers yet")

        def __array_namespace__(self):
            return np

    with pytest.raises(DtypeError, match=r"(?s)query is an array that cannot be read.*jax.jit"):
        regard.attention(Traced(), Traced(), Traced())


def test_framework_without_from_dlpack_is_refused(without_shape_checks):
    class OneWay:
        def __dlpack__(self, **options):
            raise AssertionError("it is refused before it is read")

    with pytest.raises(DtypeError, match=r"(?s)cannot be converted to OneWay.*from_dlpack.*numpy.asarray"):
        regard.attention(OneWay(), OneWay(), OneWay())

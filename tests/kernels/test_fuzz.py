"""Random shapes, memory layouts, dtypes, masks and biases, forward and backward, against "reference" in float64.

Arrays are in storage full of NaN: transposed, with gaps, some with negative or zero strides, at any offset. A read
outside of an array gives NaN; results are in such storage too, and nothing around them may change. Scratch memory is
NaN as well. Lengths are on both sides of the edges of tiles, and for some cases beyond two ranges of key tiles
(``csrc/attention/backward_split.h``), with far fewer or far more queries than keys.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import regard
from hypothesis_examples import examples
from kernels.rounding import assert_within_rounding
from long_lengths import length_pairs
from regard import masks
from regard.kernels import extension, results

native = extension.native
GUARD = 64  # elements before and after each array
NEAR_EDGES = [1, 2, 3, 5, 17, 31, 63, 64, 65, 67, 127, 128, 129, 131]  # edges of tiles and of registers
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
fuzz_settings = settings(examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.fixture(autouse=True, scope="module")
def poison_scratch_memory() -> Iterator[None]:
    native.poison(True)
    yield
    native.poison(False)


class StridedArray(NamedTuple):
    """An array, in its own storage."""

    array: Any  # the argument for kernels: a tensor, or a NumPy array if a stride is negative
    tensor: Tensor  # the same numbers, in the same memory unless a stride is negative
    storage: Tensor  # flat

    def __repr__(self) -> str:
        return f"{self.tensor.dtype} {tuple(self.tensor.shape)}, strides {self.tensor.stride()}"

    def surrounding_bits(self) -> Tensor:
        """Return the bits of the storage around the array."""
        inside = torch.zeros(self.storage.shape, dtype=torch.bool)
        inside.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()).fill_(True)
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[self.storage.itemsize]
        return self.storage.view(bits)[~inside]


@st.composite
def strided_arrays(
    draw: st.DrawFn, numbers: Tensor, *, written: bool = False, empty: float | bool = torch.nan
) -> StridedArray:
    """Place ``numbers`` at random strides and offset; ``written``: uninitialized, for a result."""
    shape = list(numbers.shape)
    order = draw(st.permutations(range(4)))
    most = 3 if numbers.numel() < 2**16 else 1  # four gaps of 3 make an array 81 times as large
    gaps = [draw(st.integers(1, most)) for _ in range(4)]
    gaps[draw(st.integers(0, 3))] = draw(st.integers(1, 3))
    strides, step = [0] * 4, 1
    for axis in reversed(order):
        strides[axis] = step * gaps[axis]
        step *= gaps[axis] * shape[axis]
    offset = GUARD + draw(st.integers(0, 7))
    storage = torch.full((offset + step + GUARD,), empty, dtype=numbers.dtype)
    tensor = storage.as_strided(shape, strides, offset)
    if written:
        return StridedArray(tensor, tensor, storage)
    backward = numbers.dtype != torch.bfloat16 and draw(
        st.booleans()
    )  # NumPy has no bfloat16, and torch no such stride
    axes = draw(st.sets(st.integers(0, 3))) if backward else set()
    tensor.copy_(numbers.flip(sorted(axes)))
    if not axes:
        return StridedArray(tensor, tensor, storage)
    turned = tensor.numpy()[tuple(slice(None, None, -1) if axis in axes else slice(None) for axis in range(4))]
    return StridedArray(turned, numbers, storage)


class RandomNumbers:
    """Random numbers from one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(dtype)

    def bools(self, probability: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < probability


lengths = st.one_of(st.sampled_from(NEAR_EDGES), st.integers(1, 140))
widths = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 127, 129, 256]))
seeds = st.integers(0, 2**32)


class Case(NamedTuple):
    """One call: its arrays, the options of mask and score, and the mask and bias that they mean."""

    query: Tensor
    key: Tensor
    value: Tensor
    given: list[Any]  # query, key and value in their memory layouts
    options: dict[str, Any]
    allowed: Tensor  # (batch, heads, queries, keys)
    bias: Tensor | None  # float64
    table: Tensor | None

    def __repr__(self) -> str:
        shapes = {name: tuple(part.shape) if hasattr(part, "shape") else part for name, part in self.options.items()}
        return f"{self.query.dtype} {[tuple(part.shape) for part in self[:3]]}, {shapes}"

    @property
    def terms(self) -> int:
        group = self.query.shape[1] // self.key.shape[1]
        return self.query.shape[3] + self.value.shape[3] + max(self.key.shape[2], group * self.query.shape[2])


def broadcasting(draw: st.DrawFn, shape: Sequence[int]) -> list[int]:
    return [draw(st.sampled_from([1, size])) for size in shape]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from(FLOATS))
    numbers = RandomNumbers(draw(seeds))
    batch, key_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    heads, (queries, keys) = key_heads * group, draw(st.one_of(st.tuples(lengths, lengths), length_pairs))
    of_heads = widths if max(queries, keys) <= 140 else st.integers(1, 20)
    head_dim, value_dim = draw(of_heads), draw(of_heads)
    whole = (batch, heads, queries, keys)
    query = numbers.normal(dtype, batch, heads, queries, head_dim)
    key = numbers.normal(dtype, batch, key_heads, keys, head_dim)
    value = numbers.normal(dtype, batch, key_heads, keys, value_dim)
    laid = [draw(strided_arrays(tensor)).array for tensor in (query, key, value)]
    if batch > 1 and draw(st.booleans()):  # all entries share the memory of the first entry's keys
        key = key[:1].expand(key.shape)
        laid[1] = draw(strided_arrays(key[:1])).tensor.expand(key.shape)

    options: dict[str, Any] = {"scale": head_dim**-0.5 * draw(st.sampled_from([1.0, 0.5, -1.0]))}
    allowed = torch.ones(whole, dtype=torch.bool)
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    if draw(st.booleans()):
        aligned = draw(st.sampled_from([0, keys - queries]))  # the first tokens, or the last ones
        low, high = aligned + draw(st.integers(-150, 20)), aligned + draw(st.integers(-20, 150))
        low, high = draw(st.sampled_from([(low, high), (None, high), (low, None)]))
        options |= {"low": low, "high": high}
        allowed &= (distance >= (-torch.inf if low is None else low)) & (
            distance <= (torch.inf if high is None else high)
        )
    if draw(st.booleans()):
        bounds = [torch.tensor([draw(st.integers(-3, keys + 3)) for _ in range(batch)]) for _ in range(2)]
        options |= {"start": bounds[0], "stop": bounds[1]}
        place = torch.arange(keys).expand(whole)
        allowed &= (place >= bounds[0].view(-1, 1, 1, 1)) & (place < bounds[1].view(-1, 1, 1, 1))
    if draw(st.booleans()):
        cells = numbers.bools(draw(st.sampled_from([0.03, 0.5, 0.97])), *broadcasting(draw, whole))
        options["dense"] = draw(strided_arrays(cells, empty=True)).array
        allowed &= cells
    if draw(st.booleans()):
        tiled = numbers.bools(0.5, draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), queries, keys)
        tiled[..., :64] = draw(st.booleans())  # makes empty or full tiles
        tiles = masks.keep(tiled).tiles(queries, keys)
        options["row_start"] = tiles.row_start.unflatten(0, (tiles.batch, tiles.heads))
        options |= {"key_tile": tiles.key_tile, "bitmap": tiles.bitmap, "bitmaps": tiles.bitmaps.flatten(1)}
        allowed &= tiled

    bias = table = None
    wide = results.accumulation_dtype(dtype)
    if draw(st.booleans()):
        bias = numbers.normal(draw(st.sampled_from(FLOATS)), *broadcasting(draw, whole))
        if draw(st.booleans()):
            bias[numbers.bools(0.1, *bias.shape)] = -torch.inf
        options["bias"] = draw(strided_arrays(bias)).array
    if draw(st.booleans()):
        lowest = 1 - keys - draw(st.integers(0, 5))
        columns = queries - lowest + draw(st.integers(0, 5))
        table = numbers.normal(wide, 1, 1, draw(st.sampled_from([1, heads])), columns)
        options |= {"table": draw(strided_arrays(table)).array, "table_lowest": lowest}
    options["threads"] = draw(st.sampled_from([1, 2]))
    return Case(query, key, value, laid, options, allowed, None if bias is None else bias.double(), table)


def additive_scores(case: Case, bias: Tensor | None, table: Tensor | None) -> Tensor | None:
    """Return the sum of bias and distance table, in float64. The last query is aligned with the last key."""
    total = bias
    if table is not None:
        queries, keys = case.query.shape[2], case.key.shape[2]
        distance = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
        by_distance = table[:, 0, :, distance - case.options["table_lowest"]]
        total = by_distance if total is None else total + by_distance
    return None if total is None else total.expand(case.allowed.shape)


class Expected(NamedTuple):
    """Output and gradients, and the largest term of each."""

    output: Tensor
    gradients: dict[str, Tensor]
    largest: dict[str, float]


def reference(case: Case, upstream: Tensor) -> Expected:
    """Compute the expected results; errors of bias and table gradients are relative to the sum of absolute terms."""
    given = dict(zip(("query", "key", "value", "bias", "table"), (*case[:3], case.bias, case.table), strict=True))
    leaves = {name: part.double().requires_grad_() for name, part in given.items() if part is not None}
    added = additive_scores(case, leaves.get("bias"), leaves.get("table"))
    cells = torch.zeros(case.allowed.shape, dtype=torch.float64, requires_grad=True)
    output = regard.attention(
        *(leaves[name] for name in ("query", "key", "value")),
        mask=masks.keep(case.allowed),
        bias=cells if added is None else cells + added,
        scale=case.options["scale"],
        impl="reference",
    )
    *found, of_cells = torch.autograd.grad(output, [*leaves.values(), cells], upstream.double())
    gradients = dict(zip(leaves, found, strict=True))
    sizes = dict(gradients)
    summed = [leaves[name] for name in ("bias", "table") if name in leaves]
    if added is not None:
        of_sizes = torch.autograd.grad(
            additive_scores(case, *map(leaves.get, ("bias", "table"))), summed, of_cells.abs()
        )
        sizes |= dict(zip([name for name in ("bias", "table") if name in leaves], of_sizes, strict=True))
    return Expected(output.detach(), gradients, {name: float(size.abs().max()) for name, size in sizes.items()})


@fuzz_settings
@given(case=cases(), data=st.data())
def test_forward_and_backward(case: Case, data: st.DataObject) -> None:
    dtype, wide = case.query.dtype, results.accumulation_dtype(case.query.dtype)
    shape = (*case.query.shape[:3], case.value.shape[3])
    upstream = RandomNumbers(data.draw(seeds)).normal(dtype, *shape)
    exact = reference(case, upstream)

    def empty_result(dtype: torch.dtype, *sizes: int) -> StridedArray:
        result = data.draw(strided_arrays(torch.empty((1,) * (4 - len(sizes)) + sizes, dtype=dtype), written=True))
        guarded.append((result, result.surrounding_bits().clone()))
        return result

    guarded: list[tuple[StridedArray, Tensor]] = []
    output, lse, normalizer = (
        empty_result(dtype, *shape),
        empty_result(wide, *shape[:3]),
        empty_result(wide, *shape[:3], 2),
    )
    rounding = empty_result(dtype, *shape) if dtype.itemsize == 2 else None
    of_rounding = {} if rounding is None else {"rounding": rounding.array}
    of_rows = lse.tensor[0], normalizer.array
    native.forward(*case.given, output.array, of_rows[0], normalizer=of_rows[1], **of_rounding, **case.options)
    assert_within_rounding("output", output.tensor, exact.output, case.terms, dtype)

    gradients = {name: empty_result(dtype, *getattr(case, name).shape) for name in ("query", "key", "value")}
    gradients |= {
        name: empty_result(wide, *getattr(case, name).shape) for name in exact.gradients if name not in gradients
    }
    native.backward(
        data.draw(strided_arrays(upstream)).array,
        *case.given,
        output.array,
        of_rows[1],
        *(gradients[name].array if name in gradients else None for name in ("query", "key", "value", "bias", "table")),
        **of_rounding,
        **case.options,
    )
    for name, ours in gradients.items():
        repeated = case.allowed.numel() / ours.tensor.numel() if name in ("bias", "table") else 0
        assert_within_rounding(
            f"gradient of {name}", ours.tensor, exact.gradients[name], case.terms + repeated, dtype, exact.largest[name]
        )
    for result, before in guarded:
        assert torch.equal(result.surrounding_bits(), before), "it wrote around its results"


@fuzz_settings
@given(case=cases(), data=st.data())
def test_observe_gives_the_same_output_and_the_weights(case: Case, data: st.DataObject) -> None:
    dtype, wide = case.query.dtype, results.accumulation_dtype(case.query.dtype)
    shape = (*case.query.shape[:3], case.value.shape[3])
    queries, keys = case.query.shape[2], case.key.shape[2]
    asked = torch.tensor(data.draw(st.lists(st.integers(0, queries - 1), min_size=1, max_size=3)))
    arrays = {
        "output": torch.empty(shape, dtype=dtype),
        "lse": torch.empty(shape[:3], dtype=wide),
        "entropy": torch.empty(shape[:3], dtype=wide),
        "received": torch.empty((*shape[:2], keys), dtype=wide),
        "top_keys": torch.empty((*shape[:3], 3), dtype=torch.int64),
        "top_weights": torch.empty((*shape[:3], 3), dtype=wide),
        "rows": asked,
        "rows_weights": torch.empty((*shape[:2], len(asked), keys), dtype=wide),
    }
    native.observe(*case.given, **arrays, **case.options)
    added = additive_scores(case, case.bias, None if case.table is None else case.table.double())
    observation = regard.observe(
        *(tensor.double() for tensor in case[:3]),
        mask=masks.keep(case.allowed),
        bias=added,
        scale=case.options["scale"],
        top=3,
        rows=asked.tolist(),
        impl="reference",
    )
    for name in ("output", "entropy", "received", "top_weights"):
        assert_within_rounding(name, arrays[name], getattr(observation, name), case.terms, dtype)
    assert_within_rounding("rows", arrays["rows_weights"], observation.rows, case.terms, dtype)
    empty = observation.lse == -torch.inf
    assert torch.equal(arrays["lse"] == -torch.inf, empty)
    assert_within_rounding(
        "lse", arrays["lse"].masked_fill(empty, 0), observation.lse.masked_fill(empty, 0), case.terms, dtype
    )


@fuzz_settings
@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=5, max_size=5),
    dtypes=st.lists(st.sampled_from([*FLOATS, torch.int64, torch.bool, torch.int8]), min_size=5, max_size=5),
)
def test_random_shapes_are_computed_or_refused(shapes: list[list[int]], dtypes: list[torch.dtype]) -> None:
    """A call computes the result, or raises one of two errors; a crash would end the run."""
    arrays = [torch.ones(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    try:
        native.forward(*arrays)
    except (ValueError, TypeError):
        return
    query, key, value, output, lse = (array.expand((1,) * (4 - array.dim()) + array.shape) for array in arrays)
    assert output.shape == (*query.shape[:3], value.shape[3])
    assert lse.shape == (1, *query.shape[:3])
    assert query.dtype == key.dtype == value.dtype == output.dtype
    assert lse.dtype == results.accumulation_dtype(query.dtype)
    assert output.eq(1.0 if key.numel() else 0.0).all()

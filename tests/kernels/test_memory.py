"""Memory: too little raises MemoryError, sizes that overflow are refused, and nothing is read before that.

Large sizes use strides of 0 over one number, so the arguments themselves take no memory.
"""

import pytest
import torch

from regard.kernels import extension
from script_process import run_script

native = extension.native
TERA = 1 << 40


def broadcast(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros of any shape, in the memory of a single number."""
    return torch.zeros((), dtype=dtype).expand(shape)


def results(batch: int, heads: int, queries: int, value_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(batch, heads, queries, value_dim), torch.zeros(batch, heads, queries)


def test_memory_error_leaves_later_calls_working():
    """Keys and values of 2^20 tokens are packed into 512 MiB, but only 200 MiB are available."""
    script = """
import resource, torch
from regard.kernels import extension
native = extension.native
query = torch.ones(1, 1, 65, 64)
output, lse = torch.empty_like(query), torch.empty(1, 1, 65)
vector, one = torch.ones(1, 64), torch.ones(1, 1)
def calls(keys):
    yield native.forward, (query, keys, keys, output, lse)
    yield native.observe, (query, keys, keys, output, lse, None, None, None, None, None, None)
    yield native.additive_forward, (query, keys, vector, keys, output, lse)
    yield native.talking_heads_forward, (query, keys, keys, one, one, output)
for function, given in calls(query):  # whatever is taken once is taken
    function(*given)
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
for function, given in calls(torch.ones(()).expand(1, 1, 1 << 20, 64)):
    try:
        function(*given)
    except MemoryError:
        print("refused", end=" ")
for function, given in calls(query):
    output.fill_(torch.nan)
    function(*given)
    print(output.eq(1).all().item(), end=" ")
"""
    result = run_script(script)
    assert result.stdout.split() == ["refused"] * 4 + ["True"] * 4, result.stdout + result.stderr
    assert result.returncode == 0, result.stderr


def test_impossible_allocation_raises_memory_error():
    """Packed keys of 2^35 tokens with 256 numbers each: 64 TiB with the values."""
    query, keys = torch.zeros(1, 1, 65, 256), broadcast(1, 1, 1 << 35, 256)
    output, lse = results(1, 1, 65, 256)
    with pytest.raises(MemoryError):
        native.forward(query, keys, keys, output, lse)
    with pytest.raises(MemoryError):
        native.observe(query, keys, keys, output, lse, None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 1, 1 << 40, 2), "too long"),
        ((1, 1 << 30, 1 << 30, 7), "exceed what can be counted"),
        ((1 << 56, 1, 7, 2), "exceed what can be counted"),
    ],
)
def test_overflowing_sizes_are_refused(shape, message):
    tokens = broadcast(*shape)
    with pytest.raises(ValueError, match=message):
        native.forward(tokens, tokens, tokens, tokens, None)


# Calls are refused before memory is written: the results are unchanged.


def arguments(**changed: object) -> dict[str, object]:
    inputs = {
        "query": torch.ones(2, 4, 5, 7),
        "key": torch.ones(2, 2, 11, 7),
        "value": torch.ones(2, 2, 11, 3),
        "output": torch.full((2, 4, 5, 3), 13.0),
        "lse": torch.full((2, 4, 5), 13.0),
    }
    return inputs | changed


TILES = {
    "row_start": torch.tensor([[[0, 1]]]),
    "key_tile": torch.zeros(1, dtype=torch.int32),
    "bitmap": torch.full((1,), -1, dtype=torch.int32),
    "bitmaps": torch.zeros(1, 64, dtype=torch.int64),
}
REFUSED = {
    "no query": ({"query": None}, ValueError, "query"),
    "no array": ({"query": 3}, TypeError, "query"),
    "integers": ({"query": torch.ones(2, 4, 5, 7, dtype=torch.int64)}, TypeError, "query"),
    "another dtype": ({"key": torch.ones(2, 2, 11, 7).double()}, TypeError, "key"),
    "another device": ({"query": torch.ones(2, 4, 5, 7, device="meta")}, ValueError, "query"),
    "five dimensions": ({"query": torch.ones(1, 2, 4, 5, 7)}, ValueError, "query"),
    "another head_dim": ({"key": torch.ones(2, 2, 11, 5)}, ValueError, "key"),
    "another batch": ({"value": torch.ones(3, 2, 11, 3)}, ValueError, "value"),
    "heads that do not divide": (
        {"key": torch.ones(2, 3, 11, 7), "value": torch.ones(2, 3, 11, 3)},
        ValueError,
        "heads",
    ),
    "wide heads": ({"query": torch.ones(2, 4, 5, 641), "key": torch.ones(2, 2, 11, 641)}, ValueError, "head_dim"),
    "wide values": ({"value": torch.ones(2, 2, 11, 641), "output": torch.ones(2, 4, 5, 641)}, ValueError, "value_dim"),
    "a short output": ({"output": torch.full((2, 4, 5, 2), 13.0)}, ValueError, "output"),
    "a narrow lse": ({"lse": torch.full((2, 4, 5), 13.0).half()}, TypeError, "lse"),
    "an output in one place": ({"output": torch.full((1,), 13.0).expand(2, 4, 5, 3)}, ValueError, "output"),
    "no threads": ({"threads": 0}, ValueError, "threads"),
    "all is dropped": ({"dropout": 1.0}, ValueError, "dropout"),
    "a wide mask": ({"dense": torch.ones(2, 4, 5, 12, dtype=torch.bool)}, ValueError, "dense"),
    "a mask of numbers": ({"dense": torch.ones(2, 4, 5, 11)}, TypeError, "dense"),
    "a wide bias": ({"bias": torch.ones(2, 4, 6, 11)}, ValueError, "bias"),
    "a bias of integers": ({"bias": torch.ones(1, 1, 1, 11, dtype=torch.int64)}, TypeError, "bias"),
    "too many bounds": ({"start": torch.zeros(4, dtype=torch.int64)}, ValueError, "start"),
    "bounds of another dtype": ({"stop": torch.zeros(2)}, TypeError, "stop"),
    "a short table": ({"table": torch.ones(1, 14), "table_lowest": -10}, ValueError, "table"),
    "a table from elsewhere": ({"table": torch.ones(1, 40), "table_lowest": -9}, ValueError, "table"),
    "tiles of other groups": (TILES | {"row_start": torch.tensor([[[0, 1]] * 3])}, ValueError, "row_start"),
    "tiles beyond the list": (TILES | {"row_start": torch.tensor([[[0, 2]]])}, ValueError, "row_start"),
    "tiles before the list": (TILES | {"row_start": torch.tensor([[[-1, 1]]])}, ValueError, "row_start"),
    "falling tiles": (TILES | {"row_start": torch.tensor([[[1, 0]]])}, ValueError, "row_start"),
    "a tile that is not there": (TILES | {"key_tile": torch.ones(1, dtype=torch.int32)}, ValueError, "key_tile"),
    "a tile before the first": (TILES | {"key_tile": torch.tensor([-1], dtype=torch.int32)}, ValueError, "key_tile"),
    "a bitmap that is not there": (TILES | {"bitmap": torch.ones(1, dtype=torch.int32)}, ValueError, "bitmap"),
    "tiles without a list": ({"row_start": TILES["row_start"]}, ValueError, "key_tile"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mismatched_arguments_are_refused_and_nothing_is_written(case):
    changed, error, name = REFUSED[case]
    inputs = arguments(**changed)
    with pytest.raises(error, match=name):
        native.forward(**inputs)
    assert all(inputs[result].eq(13).all() or inputs[result].eq(1).all() for result in ("output", "lse"))


def test_out_of_bounds_row_of_a_tile_map_is_refused():
    """The last row ends inside the list, but an earlier row far outside."""
    query = torch.ones(1, 1, 65, 7)
    output, lse = results(1, 1, 65, 7)
    with pytest.raises(ValueError, match="row_start"):
        native.forward(query, query, query, output, lse, **TILES | {"row_start": torch.tensor([[[0, TERA, 1]]])})


@pytest.mark.parametrize("row", [-1, 5, TERA, -TERA])
def test_out_of_range_rows_are_refused(row):
    inputs, rows = arguments(), torch.tensor([0, row])
    weights = torch.zeros(2, 4, 2, 11)
    with pytest.raises(ValueError, match="rows: an index"):
        native.observe(*inputs.values(), None, None, None, None, rows, weights)
    with pytest.raises(ValueError, match="rows: expected rows_weights"):
        native.observe(*inputs.values(), None, None, None, None, torch.tensor([0]), None)
    with pytest.raises(ValueError, match="top_weights: expected top_keys"):
        native.observe(*inputs.values(), None, None, None, torch.zeros(2, 4, 5, 1), None, None)


@pytest.mark.parametrize(
    ("table", "lengths", "name"),
    [
        ([[0, 2]], [5], "page_table"),
        ([[0, -1]], [5], "page_table"),
        ([[0, 1]], [7], "lengths"),
        ([[0, 1]], [-1], "lengths"),
    ],
)
def test_out_of_range_pages_are_refused(table, lengths, name):
    query, pages = torch.ones(1, 2, 1, 7), torch.ones(2, 2, 3, 7)
    with pytest.raises(ValueError, match=name):
        native.paged(
            query, pages, pages, torch.tensor(table), torch.tensor(lengths), None, torch.empty_like(query), None
        )
    unused = torch.tensor([[0, TERA]])  # the second page is not in use
    output = torch.empty_like(query)
    native.paged(query, pages, pages, unused, torch.tensor([3]), None, output, None)
    assert output.eq(1).all()

"""Calls of the kernels of this folder on tensors of torch: arguments, results and grids.

``Problem`` holds what all kernels of a call share. Nothing here has a gradient: see ``differentiable``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, final

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from regard.contract import Frame
from regard.kernels.results import empty_token_major
from regard.kernels.tile_programs.asked_rows import weigh_rows
from regard.kernels.tile_programs.block_sizes import Launch, Target, choose_launch
from regard.kernels.tile_programs.forward import compute_output
from regard.kernels.tile_programs.kernel_arguments import (
    BiasTable,
    BiasTensor,
    Normalizer,
    Sinks,
    Sizes,
    Terms,
    TileLists,
    Tokens,
)
from regard.kernels.tile_programs.received import sum_columns
from regard.kernels.tile_programs.row_statistics import MAX_COUNT, summarize_rows
from regard.kernels.tile_programs.token_flags import flag_tokens
from regard.masks.device_tiles import DeviceTiles


@final
class Inputs(NamedTuple):
    """The tensors and numbers of a call, with the shapes in ``contract``; ``table`` (heads or 1, distances) float32."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    table: Tensor | None
    sinks: Tensor | None
    tiles: DeviceTiles | None
    table_shift: int
    scale: float
    softcap: float | None


@final
class Problem(NamedTuple):
    """Inputs in the form of the kernels, and the flags of tokens that are not finite."""

    inputs: Inputs
    terms: Terms
    sizes: Sizes
    rows: TileLists | None
    columns: TileLists | None
    launch: Launch


@final
class Output(NamedTuple):
    """Results of the first pass: the output, and float32 (batch, heads, queries)."""

    output: Float[Tensor, "batch heads queries value_dim"]
    lse: Float[Tensor, "batch heads queries"]
    max_score: Float[Tensor, "batch heads queries"]
    normalizer: Normalizer
    sink_weight: Float[Tensor, "batch heads queries"] | None


@final
class Summary(NamedTuple):
    """Results of the second pass, each None if it was not asked for."""

    entropy: Float[Tensor, "batch heads queries"] | None
    mean: Float[Tensor, "batch heads queries"] | None
    top_keys: Tensor
    top_weights: Float[Tensor, "batch heads queries top"]


def make_problem(inputs: Inputs) -> Problem:
    """Convert the inputs of a call, and flag the tokens that are not finite."""
    query, key, value = (_with_dense_rows(part) for part in (inputs.query, inputs.key, inputs.value))
    inputs = inputs._replace(query=query, key=key, value=value)
    launch = choose_launch(query.shape[3], value.shape[3], query.dtype, find_target(query.device))
    bad_query, bad_key = _flag(query, None, launch), _flag(key, value, launch)
    terms = Terms(
        inputs.scale, inputs.softcap, _of_bias(inputs), _of_table(inputs), _of_sinks(inputs), bad_query, bad_key
    )
    sizes = Sizes(query.shape[1], query.shape[1] // key.shape[1], query.shape[2], key.shape[2])
    tiles, rows, columns = inputs.tiles, None, None
    if tiles is not None:
        rows = _of_lists(tiles, tiles.row_bounds, tiles.row_tile, tiles.row_bitmap)
        columns = _of_lists(tiles, tiles.column_bounds, tiles.column_tile, tiles.column_bitmap)
    return Problem(inputs, terms, sizes, rows, columns, launch)


def run_forward(problem: Problem, dtype: torch.dtype) -> Output:
    """Compute the output in ``dtype``, and the normalizer of each query."""
    inputs, sizes = problem.inputs, problem.sizes
    output = empty_token_major(inputs.query, sizes.queries, inputs.value.shape[3]).to(dtype)
    lse, max_score, largest, log_sum = (_empty_rows(problem) for _ in range(4))
    sink_weight = None if inputs.sinks is None else _empty_rows(problem)
    normalizer = Normalizer(largest, log_sum)
    results = (as_tokens(output), max_score, normalizer, lse, sink_weight)
    run(
        compute_output,
        (sizes.queries, problem.launch.blocks.rows, lse.shape[0] * sizes.heads),
        (*tokens_of(problem), problem.rows, problem.terms, *results, sizes),
        problem.launch,
    )
    return Output(output, lse, max_score, normalizer, sink_weight)


def run_row_statistics(
    problem: Problem, output: Output, *, top: int = 0, has_entropy: bool = True, column: Tensor | None = None
) -> Summary:
    """Compute the entropy, the ``top`` largest weights, and the mean of ``column`` (batch, heads, keys)."""
    sizes = problem.sizes
    entropy = _empty_rows(problem) if has_entropy else None
    mean = None if column is None else _empty_rows(problem)
    top_weights = output.lse.new_empty((*output.lse.shape, top))
    top_keys = torch.empty_like(top_weights, dtype=torch.int64)
    count = 0 if top == 0 else min(MAX_COUNT, triton.next_power_of_2(max(2, top)))
    query, key, _ = tokens_of(problem)
    results = (output.sink_weight, entropy, column, mean, top_keys, top_weights, top)
    run(
        summarize_rows,
        (sizes.queries, problem.launch.blocks.rows, output.lse.shape[0] * sizes.heads),
        (query, key, problem.rows, problem.terms, output.normalizer, *results, sizes, count),
        problem.launch,
    )
    return Summary(entropy, mean, top_keys, top_weights)


def run_received(problem: Problem, normalizer: Normalizer) -> Float[Tensor, "batch heads keys"]:
    """Compute the weight that each key received."""
    sizes = problem.sizes
    batch = problem.inputs.query.shape[0]
    received = problem.inputs.query.new_empty((batch, sizes.heads, sizes.keys), dtype=torch.float32)
    query, key, _ = tokens_of(problem)
    run(
        sum_columns,
        (sizes.keys, problem.launch.blocks.columns, batch * sizes.heads),
        (query, key, problem.columns, problem.terms, normalizer, received, sizes),
        problem.launch,
    )
    return received


def run_asked_rows(
    problem: Problem, normalizer: Normalizer, rows: Int[Tensor, " asked"]
) -> Float[Tensor, "batch heads asked keys"]:
    """Compute the weights of the queries ``rows`` over all keys."""
    sizes, launch, tiles = problem.sizes, problem.launch, problem.inputs.tiles
    batch, count = problem.inputs.query.shape[0], rows.shape[0]
    weights = problem.inputs.query.new_empty((batch, sizes.heads, count, sizes.keys), dtype=torch.float32)
    codes = None if tiles is None else tiles.codes_of(rows // 64)
    query, key, _ = tokens_of(problem)
    key_parts = -(-sizes.keys // launch.blocks.columns)
    run(
        weigh_rows,
        (count, launch.blocks.rows, key_parts * batch * sizes.heads),
        (query, key, problem.rows, codes, problem.terms, normalizer, rows, count, weights, sizes),
        launch,
    )
    return weights


def run(kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], launch: Launch) -> None:
    """Run a kernel for a length in parts of so many, so many times."""
    length, part, repeats = grid
    programs = -(-length // part) * repeats
    if programs == 0:
        return
    tensor = next(part for part in _leaves(arguments) if isinstance(part, Tensor))
    with _current_device(tensor.device):
        kernel[(programs,)](*arguments, launch.blocks, num_warps=launch.num_warps, num_stages=launch.num_stages)


def tokens_of(problem: Problem) -> tuple[Tokens, Tokens, Tokens]:
    """Return query, key and value in the form of the kernels."""
    inputs = problem.inputs
    return as_tokens(inputs.query), as_tokens(inputs.key), as_tokens(inputs.value)


def as_tokens(tensor: Tensor) -> Tokens:
    """Return a tensor (batch, heads, length, size) in the form of the kernels."""
    return Tokens(tensor, *tensor.stride()[:3])


def table_shift(frame: Frame, lowest: int) -> int:
    """Return what is added to key - query for the column of a table whose first distance is ``lowest``."""
    return -frame.offset - lowest


def find_target(device: torch.device) -> Target:
    """Return what kernels for a device are compiled for."""
    return Target("hip" if torch.version.hip is not None else device.type)


def _leaves(arguments: tuple[Any, ...]) -> list[Any]:
    return [leaf for part in arguments for leaf in (_leaves(part) if isinstance(part, tuple) else [part])]


def _current_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which ``device`` is the current one of its kind: Triton launches on that."""
    if device.type == "cpu":  # the interpreter's
        return nullcontext()
    guard: AbstractContextManager[object] = torch.get_device_module(device).device(device)
    return guard


def _with_dense_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _empty_rows(problem: Problem) -> Tensor:
    query = problem.inputs.query
    return query.new_empty(query.shape[:3], dtype=torch.float32)


def _flag(first: Tensor, second: Tensor | None, launch: Launch) -> Tensor:
    """Flag the tokens that are not finite: (batch, heads, length) uint8."""
    batch, heads, length, _ = first.shape
    flags = first.new_empty((batch, heads, length), dtype=torch.uint8)
    arguments = (as_tokens(first), None if second is None else as_tokens(second), flags, heads, length)
    run(flag_tokens, (length, launch.blocks.rows, batch * heads), arguments, launch)
    return flags


def _of_lists(tiles: DeviceTiles, bounds: Tensor, tile: Tensor, bitmap: Tensor) -> TileLists:
    return TileLists(bounds, tile, bitmap, tiles.bitmaps, *tiles.strides, bounds.shape[1])


def _of_bias(inputs: Inputs) -> BiasTensor | None:
    return None if inputs.bias is None else BiasTensor(inputs.bias, *_strides(inputs.bias))


def _of_table(inputs: Inputs) -> BiasTable | None:
    table = inputs.table
    return None if table is None else BiasTable(table, _strides(table)[0], inputs.table_shift)


def _of_sinks(inputs: Inputs) -> Sinks | None:
    return None if inputs.sinks is None else Sinks(inputs.sinks, *_strides(inputs.sinks)[:3])


def _strides(tensor: Tensor) -> list[int]:
    """Return strides that broadcast: 0 where a size is 1."""
    return [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]

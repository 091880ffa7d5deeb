"""Tokens sorted by bucket, and the tile map of attention over them, as the native kernels read it.

A *place* is an index among the sorted tokens. Each bucket begins at a multiple of 64, the side of a tile, so that a
query and the keys of its bucket lie in the same places of their tiles whatever the other buckets hold: then no rounding
depends on tokens of other buckets. Places behind the last token of a bucket are empty.

With chunks, places are those of all rounds, one after the other, and nothing is aligned. Hidden tokens, which have no
bucket in any round, are the last ones of each round: a chunk behind the last used one holds hidden tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.kernel_arguments import KernelArguments

TILE = 64


@final
@dataclass(frozen=True)
class SortedTokens:
    """``token`` at each place, -1: none; ``place`` of each token, -1: none, once for each round that shares places.

    ``tile_start`` is the first tile of each bucket, and of all behind the last; None with chunks. ``last_chunk`` is the
    last used chunk of every round, counted within the round; None without chunks.
    """

    token: Int[Tensor, "groups places"]
    place: Int[Tensor, "groups rounds tokens"]
    tile_start: Int[Tensor, "groups buckets_and_one"] | None = None
    last_chunk: Int[Tensor, " groups"] | None = None


def sort_into_tiles(buckets: Int[Tensor, "groups tokens"], count: int) -> SortedTokens:
    """Sort tokens into buckets that begin at multiples of 64; tokens of bucket -1 get no place."""
    groups, tokens = buckets.shape
    numbers = buckets.long()
    sizes = torch.zeros(groups, count + 1, dtype=torch.long).scatter_add_(1, numbers + 1, torch.ones_like(numbers))
    tile_start = torch.zeros(groups, count + 1, dtype=torch.long)
    torch.cumsum((sizes[:, 1:] + TILE - 1) // TILE, 1, out=tile_start[:, 1:])
    order = _argsort(numbers, count)
    numbers = numbers.gather(1, order)
    rank = torch.arange(tokens) - (sizes.cumsum(1) - sizes).gather(1, numbers + 1)
    places = max(1, int(tile_start[:, -1].max())) * TILE if groups else TILE
    place = tile_start.gather(1, numbers.clamp(min=0)) * TILE + rank
    token = torch.full((groups, places + 1), -1)  # the last one takes tokens without a place
    token.scatter_(1, place.masked_fill(numbers < 0, places), order)
    of_token = torch.empty_like(place).scatter_(1, order, place.masked_fill(numbers < 0, -1))
    return SortedTokens(token[:, :places], of_token[:, None], tile_start)


def sort_into_chunks(buckets: Int[Tensor, "groups tokens rounds"], count: int, chunk: int) -> SortedTokens:
    """Sort the tokens of each round by bucket, -1 last, hidden ones behind, and fill up each round to whole chunks."""
    groups, tokens, rounds = buckets.shape
    length = -(-tokens // chunk) * chunk
    hidden = (buckets < 0).all(2)
    numbers = buckets.long().masked_fill(buckets < 0, count).masked_fill(hidden[..., None], count + 1).transpose(1, 2)
    order = _argsort(numbers, count + 2)
    last_chunk = ((~hidden).sum(1) - 1).clamp(min=0) // chunk
    token = torch.full((groups, rounds, length), -1)
    token[:, :, :tokens] = order
    first = torch.arange(rounds)[:, None] * length
    place = torch.empty_like(order).scatter_(2, order, (torch.arange(tokens) + first).expand_as(order))
    return SortedTokens(token.flatten(1), place, last_chunk=last_chunk)


def bucket_tile_map(
    queries: SortedTokens,
    keys: SortedTokens,
    query_buckets: Int[Tensor, "batch heads queries rounds"],
    key_buckets: Int[Tensor, "batch heads keys rounds"],
    *,
    earlier: int,
    buckets: int,
    high: int | None,
    own: int | None,
) -> KernelArguments:
    """Make the tile map of one round: each tile of queries and the tiles of its bucket's keys.

    ``own`` is key - query of a token and itself, if these pairs are left out. Pairs of earlier rounds are left out too.
    """
    assert queries.tile_start is not None
    assert keys.tile_start is not None
    groups, tiles = queries.token.shape[0], queries.token.shape[1] // TILE
    bucket = torch.searchsorted(queries.tile_start, torch.arange(tiles).expand(groups, -1).contiguous(), right=True) - 1
    filled = bucket < queries.tile_start.shape[1] - 1
    bucket = bucket.clamp(max=queries.tile_start.shape[1] - 2)
    first, stop = keys.tile_start.gather(1, bucket), keys.tile_start.gather(1, bucket + 1)
    counts = ((stop - first) * filled).flatten()
    row = torch.arange(groups * tiles).repeat_interleave(counts)
    key_tile = torch.arange(row.shape[0]) - (counts.cumsum(0) - counts)[row] + first.flatten()[row]
    if high is not None:  # tiles whose keys all are too late
        last_query = queries.token.unflatten(1, (tiles, TILE)).amax(2).flatten()[row]
        first_key = keys.token[:, ::TILE][row // tiles, key_tile]
        kept = first_key <= last_query + high
        row, key_tile = row[kept], key_tile[kept]
    row_start = torch.zeros(groups * tiles + 1, dtype=torch.long)
    torch.cumsum(torch.bincount(row, minlength=groups * tiles), 0, out=row_start[1:])
    of_groups = torch.arange(groups)[:, None] * tiles + torch.arange(tiles + 1)
    return _fill_cells(
        queries,
        keys,
        query_buckets,
        key_buckets,
        row_start[of_groups],
        key_tile,
        earlier=earlier,
        buckets=buckets,
        high=high,
        own=own,
    )


def chunk_tile_map(
    queries: SortedTokens,
    keys: SortedTokens,
    query_buckets: Int[Tensor, "batch heads tokens rounds"],
    key_buckets: Int[Tensor, "batch heads tokens rounds"],
    *,
    chunk: int,
    high: int | None,
    own: int | None,
) -> KernelArguments:
    """Make the tile map of all rounds: each tile of queries, and the tiles of its chunks and of those before them."""
    assert keys.last_chunk is not None
    groups, places = queries.token.shape
    tiles, rounds = -(-places // TILE), queries.place.shape[1]
    # The chunks of a tile and the one before the first of them are in a row.
    at = torch.arange(tiles)
    first_chunk, last_chunk = at * TILE // chunk, ((at + 1) * TILE).clamp(max=places).sub(1) // chunk
    first, stop = (first_chunk - 1).clamp(min=0) * chunk // TILE, ((last_chunk + 1) * chunk - 1) // TILE + 1
    near = stop - first
    row = at.repeat_interleave(near)
    step = torch.arange(row.shape[0]) - (near.cumsum(0) - near)[row]
    group = torch.arange(groups)[:, None]
    pairs = [(group * tiles + row) * tiles + first[row] + step]
    # The first chunk of a round meets the last used one of the round before, which is another one in each group.
    in_round, number = places // chunk // rounds, torch.arange(rounds)
    before = (number - 1) % rounds * in_round + keys.last_chunk[:, None]
    query_tile, has_query = _tiles_of_chunk(number * in_round, chunk)
    key_tile, has_key = _tiles_of_chunk(before, chunk)
    query_tile, key_tile = query_tile[None, :, :, None], key_tile[:, :, None, :]
    own_row = query_tile.clamp(max=tiles - 1)
    far = (
        has_query[None, :, :, None]
        & has_key[:, :, None, :]
        & ((key_tile < first[own_row]) | (key_tile >= stop[own_row]))
    )
    pairs.append((((group * tiles)[..., None, None] + query_tile) * tiles + key_tile)[far])
    listed = torch.cat([one.flatten() for one in pairs]).unique()
    row_start = torch.zeros(groups * tiles + 1, dtype=torch.long)
    torch.cumsum(torch.bincount(listed // tiles, minlength=groups * tiles), 0, out=row_start[1:])
    of_groups = torch.arange(groups)[:, None] * tiles + torch.arange(tiles + 1)
    return _fill_cells(
        queries,
        keys,
        query_buckets,
        key_buckets,
        row_start[of_groups],
        listed % tiles,
        chunk=chunk,
        last_chunk=keys.last_chunk,
        high=high,
        own=own,
    )


def _tiles_of_chunk(
    number: Int[Tensor, "*chunks"], chunk: int
) -> tuple[Int[Tensor, "*chunks most_tiles"], Bool[Tensor, "*chunks most_tiles"]]:
    """Return the tiles that a chunk may have places in, since it begins anywhere in one, and in which it has some."""
    most = (chunk + TILE - 2) // TILE + 1
    tile = (number * chunk // TILE)[..., None] + torch.arange(most)
    return tile, tile <= ((number + 1) * chunk - 1)[..., None] // TILE


def _fill_cells(
    queries: SortedTokens,
    keys: SortedTokens,
    query_buckets: Int[Tensor, "batch heads queries rounds"],
    key_buckets: Int[Tensor, "batch heads keys rounds"],
    row_start: Int[Tensor, "groups query_tiles_and_one"],
    key_tile: Int[Tensor, " entries"],
    **options: int | Tensor | None,
) -> KernelArguments:
    """Compute the cells of the listed tiles."""
    key_tile = key_tile.int()
    bitmaps = torch.empty(key_tile.shape[0], TILE, dtype=torch.long)
    native.bucket_cells(
        queries.token.int(),
        keys.token.int(),
        query_buckets.flatten(0, 1).int().contiguous(),
        key_buckets.flatten(0, 1).int().contiguous(),
        row_start,
        key_tile,
        bitmaps,
        threads=torch.get_num_threads(),
        **options,  # type: ignore[arg-type]
    )
    return KernelArguments(
        row_start=row_start.unflatten(0, query_buckets.shape[:2]),
        key_tile=key_tile,
        bitmap=torch.arange(key_tile.shape[0], dtype=torch.int32),
        bitmaps=bitmaps,
    )


def _argsort(numbers: Int[Tensor, "*rows tokens"], count: int) -> Int[Tensor, "*rows tokens"]:
    """Sort stably; by radix, which NumPy uses for 16 bits, where numbers up to ``count`` fit."""
    narrow = numbers.numpy().astype(np.int16 if count < 2**15 else np.int64)
    return torch.from_numpy(narrow.argsort(axis=-1, kind="stable"))

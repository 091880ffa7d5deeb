"""Tokens sorted by bucket, and the tile map of attention over them, as the native kernels read it.

A *place* is an index among the sorted tokens. Each bucket begins at a multiple of 64, the side of a tile, so that a
query and the keys of its bucket lie in the same places of their tiles whatever the other buckets hold: then no rounding
depends on tokens of other buckets. Places behind the last token of a bucket are empty.

With chunks, the places of all rounds follow one another, and nothing is aligned. Hidden tokens, which have no
bucket in any round, are the last ones of each round: a chunk behind the last used one holds hidden tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Bool, Int, Int32
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

    token: Int32[Tensor, "groups places"]
    place: Int32[Tensor, "groups rounds tokens"]
    tile_start: Int[Tensor, "groups buckets_and_one"] | None = None
    last_chunk: Int[Tensor, " groups"] | None = None

    def take(self, choose: Callable[[Tensor], Tensor]) -> SortedTokens:
        """Return the tokens of the groups that ``choose`` takes of each tensor."""
        tile_start, last_chunk = (
            None if tensor is None else choose(tensor) for tensor in (self.tile_start, self.last_chunk)
        )
        return SortedTokens(choose(self.token), choose(self.place), tile_start, last_chunk)


def sort_into_tiles(buckets: Int32[Tensor, "groups tokens"], count: int) -> SortedTokens:
    """Sort tokens into buckets that begin at multiples of 64; tokens of bucket -1 get no place."""
    codes = buckets[..., None].contiguous()
    sizes = _count_buckets(codes, count)[:, :, :count]
    tile_start = torch.zeros(codes.shape[0], count + 1, dtype=torch.long)
    torch.cumsum((sizes[:, 0] + TILE - 1) // TILE, 1, out=tile_start[:, 1:])
    start = torch.full((codes.shape[0], 1, count + 2), -1)
    start[:, 0, :count] = tile_start[:, :-1] * TILE
    places = max(1, int(tile_start[:, -1].max())) * TILE
    return SortedTokens(*_sort(codes, start, places), tile_start)


def sort_into_chunks(buckets: Int32[Tensor, "groups tokens rounds"], count: int, chunk: int) -> SortedTokens:
    """Sort the tokens of each round by bucket, -1 last, hidden ones behind, and fill up each round to whole chunks."""
    codes = buckets.contiguous()
    tokens, rounds = codes.shape[1:]
    length = -(-tokens // chunk) * chunk
    sizes = _count_buckets(codes, count)
    last_chunk = (tokens - sizes[:, 0, -1] - 1).clamp(min=0) // chunk
    start = sizes.cumsum(2) - sizes + torch.arange(rounds)[:, None] * length
    return SortedTokens(*_sort(codes, start, rounds * length), last_chunk=last_chunk)


def _count_buckets(codes: Int32[Tensor, "groups tokens rounds"], count: int) -> Int[Tensor, "groups rounds kinds"]:
    """Count the tokens of each bucket, of those without one in a round, and of those without one in any."""
    sizes = torch.empty(codes.shape[0], codes.shape[2], count + 2, dtype=torch.long)
    native.count_buckets(codes, sizes, threads=torch.get_num_threads())
    return sizes


def _sort(
    codes: Int32[Tensor, "groups tokens rounds"], start: Int[Tensor, "groups rounds kinds"], places: int
) -> tuple[Int32[Tensor, "groups places"], Int32[Tensor, "groups rounds tokens"]]:
    """Sort tokens stably from the first place of each bucket on."""
    groups, tokens, rounds = codes.shape
    token = torch.empty(groups, places, dtype=torch.int32)
    place = torch.empty(groups, rounds, tokens, dtype=torch.int32)
    native.sort_by_bucket(codes, start, token, place, threads=torch.get_num_threads())
    return token, place


def bucket_tile_map(
    queries: SortedTokens,
    keys: SortedTokens,
    query_buckets: Int32[Tensor, "batch heads queries rounds"],
    key_buckets: Int32[Tensor, "batch heads keys rounds"],
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
    row_start = torch.empty(groups, tiles + 1, dtype=torch.long)
    room = int((queries.tile_start.diff() * keys.tile_start.diff()).sum())
    key_tile = torch.empty(room, dtype=torch.int32)
    entries = native.list_bucket_tiles(
        queries.token, keys.token, queries.tile_start, keys.tile_start, row_start, key_tile, high=high
    )
    return _fill_cells(
        queries,
        keys,
        query_buckets,
        key_buckets,
        row_start,
        key_tile[:entries],
        earlier=earlier,
        buckets=buckets,
        high=high,
        own=own,
    )


def chunk_tile_map(
    queries: SortedTokens,
    keys: SortedTokens,
    query_buckets: Int32[Tensor, "batch heads tokens rounds"],
    key_buckets: Int32[Tensor, "batch heads tokens rounds"],
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
    listed = torch.cat([pair.flatten() for pair in pairs]).unique()
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
    max_tiles = (chunk + TILE - 2) // TILE + 1
    tile = (number * chunk // TILE)[..., None] + torch.arange(max_tiles)
    return tile, tile <= ((number + 1) * chunk - 1)[..., None] // TILE


def _fill_cells(
    queries: SortedTokens,
    keys: SortedTokens,
    query_buckets: Int32[Tensor, "batch heads queries rounds"],
    key_buckets: Int32[Tensor, "batch heads keys rounds"],
    row_start: Int[Tensor, "groups query_tiles_and_one"],
    key_tile: Int[Tensor, " entries"],
    **options: Any,
) -> KernelArguments:
    """Compute the cells of the listed tiles."""
    key_tile = key_tile.int()
    bitmaps = torch.empty(key_tile.shape[0], TILE, dtype=torch.long)
    native.bucket_cells(
        queries.token,
        keys.token,
        query_buckets.flatten(0, 1).contiguous(),
        key_buckets.flatten(0, 1).contiguous(),
        row_start,
        key_tile,
        bitmaps,
        threads=torch.get_num_threads(),
        **options,
    )
    return KernelArguments(
        row_start=row_start.unflatten(0, query_buckets.shape[:2]),
        key_tile=key_tile,
        bitmap=torch.arange(key_tile.shape[0], dtype=torch.int32),
        bitmaps=bitmaps,
    )

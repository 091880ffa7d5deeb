// Forward pass: keys and values are packed once per (batch, key head), then each tile of queries is one task.
//
// If no tile of keys is read by two tiles of queries, it is packed by the task that reads it, into memory that stays in
// the cache. For short sequences a task is a whole (batch, key head), so that the packed keys and values are still in the cache.
// In both cases a tile of queries is computed by the same code from the same numbers, with the same bits.
#include "drivers.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

constexpr int64_t short_tiles = 8;  // key tiles (512 keys) whose packed form fits a core's L2 cache

void forward_by_head(const Problem& p, const TileKernels& k, const ForwardResults& results, int threads) {
    int64_t tiles = p.key_tiles(), group = p.group();
    PackedSizes sizes(p, k);
    ScratchParts scratch(threads, sizes.head_bytes() + std::max(k.pack_scratch(p), k.forward_scratch(p)));
    const Array in_pages;  // which are not prefetched
    const Array &key = p.page_table ? in_pages : p.key, &value = p.page_table ? in_pages : p.value;
    HeadSets(p, threads).run(threads, {&key, &value}, {&p.query}, [&](int64_t batch, int64_t key_head, int thread) {
        PackedKeys keys = sizes.at(scratch[thread]);
        char* rest = scratch[thread] + sizes.head_bytes();
        for (int64_t t = 0; t < tiles; ++t) pack_tile(p, k, batch, key_head, t, keys, rest);
        for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h)
            for (int64_t t = 0; t < p.query_tiles(); ++t) k.forward(p, keys, batch, h, t, results, rest);
    });
}

void forward_by_group(const Problem& p, const TileKernels& k, const ForwardResults& results, int threads) {
    PackedSizes sizes(p, k);
    sizes.tiles = std::min<int64_t>(sizes.tiles, k.group);
    size_t packing = align_up(k.pack_scratch(p));
    ScratchParts scratch(threads, sizes.head_bytes() + packing + k.forward_scratch(p));
    parallel_for(p.batch * p.heads, threads, [&](int64_t task, int thread) {
        PackedKeys keys = sizes.at(scratch[thread]);
        keys.pack_scratch = scratch[thread] + sizes.head_bytes();
        k.forward(p, keys, task / p.heads, task % p.heads, 0, results, keys.pack_scratch + packing);
    });
}

void forward_by_tile(const Problem& p, const TileKernels& k, const ForwardResults& results, int threads) {
    int64_t query_tiles = p.query_tiles();
    PackedSizes sizes(p, k);
    int64_t all = p.batch * p.key_heads, tasks = p.group() * query_tiles;  // of one (batch, key head)
    int64_t round_heads = heads_per_round(all, sizes.head_bytes(), ceil_div(8 * threads, tasks));
    ScratchParts packed(round_heads, sizes.head_bytes());
    ScratchParts scratch(threads, std::max(k.pack_scratch(p), k.forward_scratch(p)));
    for_rounds(all, round_heads, [&](int64_t first, int64_t count) {
        pack_heads(p, k, sizes, first, count, packed, scratch, threads);
        auto compute = [&](int64_t task, int thread) {
            int64_t unit = first + task / tasks, head = unit % p.key_heads * p.group() + task % tasks / query_tiles;
            int64_t query_tile = query_tiles - 1 - task % query_tiles;  // last tiles first: causal ones take longest
            PackedKeys keys = sizes.at(packed[task / tasks]);
            k.forward(p, keys, unit / p.key_heads, head, query_tile, results, scratch[thread]);
        };
        // With few heads, a range of tiles would be the long ones of a causal mask.
        count >= 4 * threads ? parallel_for_owned(count * tasks, threads, compute)
                             : parallel_for(count * tasks, threads, compute);
    });
}

}  // namespace

void forward(const Problem& p, const ForwardResults& results, int threads) {
    if (p.batch == 0 || p.heads == 0 || p.queries == 0) return;
    if (!p.vector && !p.query.rows && (p.key.dtype == Dtype::int8 || is_decode_suitable(p)))
        return decode(p, results, threads);
    const TileKernels& k = tile_kernels_in_use(p);
    const bool read_once = p.query_tiles() * p.group() == 1;
    if (read_once && !p.vector && p.key_tiles() > short_tiles) return forward_by_group(p, k, results, threads);
    bool plenty = p.batch * p.key_heads >= 4 * threads || read_once;
    if (p.key_tiles() <= short_tiles && plenty)
        forward_by_head(p, k, results, threads);
    else
        forward_by_tile(p, k, results, threads);
}

}  // namespace regard

// Forward pass: keys and values are packed once per (batch, key head), then each tile of queries is one task.
//
// If no tile of keys is read by two tiles of queries, it is packed by the task that reads it, into memory that stays in
// the cache. For short sequences a task is a whole (batch, key head), so that the packed keys and values are still in the cache.
// In both cases a tile of queries is computed by the same code from the same numbers, with the same bits.
#include "decode/decode.h"
#include "drivers.h"
#include "runtime/cpu.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

constexpr int64_t short_tiles = 8;  // key tiles (512 keys) whose packed form fits a core's L2 cache

void forward_by_head(const Problem& p, const TileKernels& k, const ForwardResults& results, int threads) {
    int64_t tiles = p.key_tiles(), group = p.group();
    PackedSizes sizes(p, k);
    size_t work = align_up(max_bytes(k.pack_scratch(p), k.forward_scratch(p)));
    size_t each = sizes.head_bytes() + work;
    Scratch scratch = Scratch::of<char>({threads, (int64_t)each});
    HeadSets(p, threads).run(threads, {&p.key, &p.value}, {&p.query}, [&](int64_t batch, int64_t key_head, int thread) {
        char* mine = scratch.as<char>() + (size_t)thread * each;
        PackedKeys keys = sizes.at(mine, 0);
        char* rest = mine + sizes.head_bytes();
        for (int64_t t = 0; t < tiles; ++t) pack_tile(p, k, batch, key_head, t, keys, rest);
        for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h)
            for (int64_t t = 0; t < p.query_tiles(); ++t) k.forward(p, keys, batch, h, t, results, rest);
    });
}

void forward_by_group(const Problem& p, const TileKernels& k, const ForwardResults& results, int threads) {
    PackedSizes sizes(p, k);
    sizes.tiles = sizes.tiles < (size_t)k.group ? sizes.tiles : (size_t)k.group;
    size_t packing = align_up(k.pack_scratch(p)), each = sizes.head_bytes() + packing + align_up(k.forward_scratch(p));
    Scratch scratch = Scratch::of<char>({threads, (int64_t)each});
    parallel_for(p.batch * p.heads, threads, [&](int64_t task, int thread) {
        char* mine = scratch.as<char>() + (size_t)thread * each;
        PackedKeys keys = sizes.at(mine, 0);
        keys.pack_scratch = mine + sizes.head_bytes();
        k.forward(p, keys, task / p.heads, task % p.heads, 0, results, keys.pack_scratch + packing);
    });
}

void forward_by_tile(const Problem& p, const TileKernels& k, const ForwardResults& results, int threads) {
    int64_t query_tiles = p.query_tiles();
    PackedSizes sizes(p, k);
    size_t work = align_up(max_bytes(k.pack_scratch(p), k.forward_scratch(p)));
    int64_t all = p.batch * p.key_heads, tasks = p.group() * query_tiles;  // of one (batch, key head)
    int64_t round_heads = heads_per_round(all, sizes.head_bytes(), ceil_div(8 * threads, tasks));
    Scratch packed = Scratch::of<char>({round_heads, (int64_t)sizes.head_bytes()});
    Scratch scratch = Scratch::of<char>({threads, (int64_t)work});
    for_rounds(all, round_heads, [&](int64_t first, int64_t count) {
        pack_heads(p, k, sizes, first, count, packed.as<char>(), scratch.as<char>(), work, threads);
        parallel_for(count * tasks, threads, [&](int64_t task, int thread) {
            int64_t unit = first + task / tasks, head = unit % p.key_heads * p.group() + task % tasks / query_tiles;
            int64_t query_tile = query_tiles - 1 - task % query_tiles;  // last tiles first: causal ones take longest
            PackedKeys keys = sizes.at(packed.as<char>(), task / tasks);
            k.forward(p, keys, unit / p.key_heads, head, query_tile, results, scratch.as<char>() + (size_t)thread * work);
        });
    });
}

}  // namespace

void forward(const Problem& p, const ForwardResults& results, int threads) {
    if (p.batch == 0 || p.heads == 0 || p.queries == 0) return;
    if (!p.vector && is_decode_suitable(p)) return decode(p, results, threads);
    const TileKernels& k = tile_kernels_for(p);
    const bool read_once = p.query_tiles() * p.group() == 1;
    if (read_once && !p.vector && p.key_tiles() > short_tiles) return forward_by_group(p, k, results, threads);
    bool plenty = p.batch * p.key_heads >= 4 * threads || read_once;
    if (p.key_tiles() <= short_tiles && plenty)
        forward_by_head(p, k, results, threads);
    else
        forward_by_tile(p, k, results, threads);
}

}  // namespace regard

// Observe: keys and values are packed once. Then a task is a tile of queries; in a second pass, for the received
// weights, a few tiles of keys; for requested rows, one row.
//
// A task sums the received weights of a key over the queries in order, so the division into tasks does not change a
// bit.
#include "drivers.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

// Number of key tiles in a task: the maximum, or fewer if there would be too few tasks for the threads.
int64_t tiles_per_task(const Problem& p, const ObserveKernels& k, int threads) {
    int64_t shared_out = p.batch * p.heads * p.key_tiles() / (4 * (int64_t)threads);
    return shared_out < 1 ? 1 : shared_out < k.received_tiles ? shared_out : k.received_tiles;
}

}  // namespace

void observe(const Problem& p, const ForwardResults& results, const Statistics& statistics, int threads) {
    if (p.batch == 0 || p.heads == 0) return;
    const KernelTable& table = kernels_in_use(p.query.dtype);
    const TileKernels& tiles = table.dot_product;
    const ObserveKernels& k = table.observe;
    int64_t top = statistics.top_keys ? statistics.top_keys.shape[3] : 0;
    PackedSizes sizes(p, tiles);
    ScratchParts packed(p.batch * p.key_heads, sizes.head_bytes());
    Scratch normals = Scratch::of<char>({p.batch, p.heads, p.queries, (int64_t)k.normal_bytes});
    ScratchParts scratch(threads, std::max({tiles.pack_scratch(p), k.scratch(p, top), k.received_scratch(p),
                                            k.row_scratch(p)}));
    ObserveOutputs into{results, statistics, normals.as<char>()};

    // Runs `parts` tasks for each (batch, head): task_of(batch, head, its keys, part, scratch).
    auto for_heads = [&](int64_t parts, auto task_of) {
        parallel_for(p.batch * p.heads * parts, threads, [&](int64_t task, int thread) {
            int64_t head = task / parts % p.heads, batch = task / parts / p.heads;
            PackedKeys keys = sizes.at(packed[batch * p.key_heads + head / p.group()]);
            task_of(batch, head, keys, task % parts, scratch[thread]);
        });
    };

    pack_heads(p, tiles, sizes, 0, p.batch * p.key_heads, packed, scratch, threads);
    int64_t query_tiles = p.query_tiles();
    for_heads(query_tiles, [&](int64_t batch, int64_t head, const PackedKeys& keys, int64_t part, char* mine) {
        // The last tiles first: with a causal mask they take longest.
        k.forward(p, keys, batch, head, query_tiles - 1 - part, into, mine);
    });
    if (statistics.received) {
        int64_t owned = tiles_per_task(p, k, threads), key_tiles = p.key_tiles();
        for_heads(ceil_div(key_tiles, owned),
                  [&](int64_t batch, int64_t head, const PackedKeys& keys, int64_t part, char* mine) {
                      int64_t first = part * owned, stop = first + owned < key_tiles ? first + owned : key_tiles;
                      k.received(p, keys, batch, head, first, stop, into, mine);
                  });
    }
    if (statistics.rows)
        for_heads(statistics.rows.shape[3],
                  [&](int64_t batch, int64_t head, const PackedKeys& keys, int64_t part, char* mine) {
                      k.row(p, keys, batch, head, part, into, mine);
                  });
}

}  // namespace regard

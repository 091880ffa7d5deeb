// Decoding: the keys of each (batch, key head) are split into chunks, one task each, so that all cores work on one
// sequence. The split depends on the lengths only, so the bits do not depend on the number of threads.
#include <math.h>

#include <algorithm>
#include <stdexcept>

#include "drivers.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"

namespace regard {

namespace {

constexpr int64_t min_parallel_join = 1 << 16;  // numbers; fewer are merged faster by one thread

constexpr int64_t min_chunk_tiles = 8;  // key tiles
constexpr int64_t max_cached_rows = 512;  // rows x key tiles whose scores fit the L2 cache

// Number of key tiles in a chunk of a sequence. A chunk reads its keys from memory, then its values, and each switch
// waits for memory. So chunks are long if there are enough of them for a hundred cores. The number does not depend on
// other sequences of the batch, so a sequence has the same bits in any batch.
int64_t tiles_in_chunk(const Problem& p, int64_t keys) {
    const int64_t tiles = ceil_div(keys, tile), rows = std::max<int64_t>(p.group() * p.queries, 1);
    const int64_t most = std::clamp(max_cached_rows / rows, min_chunk_tiles, max_chunk_tiles);
    return std::clamp(p.key_heads * tiles / 128, min_chunk_tiles, most);
}

// Computes every chunk, then merges the chunks. `lengths` are the numbers of keys of each batch entry; null: p.keys.
void decode_chunks(const Problem& p, const Pages* pages, const int64_t* lengths, const ForwardResults& results,
               int threads) {
    const DecodeKernels& k = decode_kernels_in_use(p);
    const auto keys_of = [&](int64_t b) { return lengths ? lengths[b] : p.keys; };
    // starts[b]: number of chunks per head of the batch entries before b
    Scratch of_starts = Scratch::of<int64_t>({p.batch + 1});
    int64_t* starts = of_starts.as<int64_t>();
    starts[0] = 0;
    for (int64_t b = 0; b < p.batch; ++b)
        starts[b + 1] = starts[b] + ceil_div(keys_of(b), tiles_in_chunk(p, keys_of(b)) * tile);
    const int64_t tasks = starts[p.batch] * p.key_heads;
    const ScratchParts partials(tasks + threads, k.partial_bytes(p)), scratch(threads, k.scratch(p));
    parallel_for(tasks, threads, [&](int64_t task, int thread) {
        int64_t b = 0, last = p.batch - 1;  // the batch entry that the task belongs to
        while (b < last) {
            int64_t middle = b + (last - b + 1) / 2;
            if (starts[middle] * p.key_heads <= task)
                b = middle;
            else
                last = middle - 1;
        }
        const int64_t chunks = starts[b + 1] - starts[b], own = task - starts[b] * p.key_heads, head = own / chunks;
        const int64_t step = tiles_in_chunk(p, keys_of(b)), first = own % chunks * step;
        const int64_t slot = chunks == 1 ? tasks + thread : task;  // a single chunk is finished immediately
        char* here = partials[slot];
        k.chunk(p, pages, b, head, first, first + step, here, scratch[thread]);
        if (chunks == 1) k.join(p, here, 1, b, head, results);
    });
    const int64_t numbers = tasks * (int64_t)(partials.bytes_of_part() / sizeof(float));
    parallel_for(p.batch * p.key_heads, numbers < min_parallel_join ? 1 : threads, [&](int64_t unit, int) {
        const int64_t b = unit / p.key_heads, head = unit % p.key_heads, chunks = starts[b + 1] - starts[b];
        if (chunks == 1) return;
        k.join(p, partials[starts[b] * p.key_heads + head * chunks], chunks, b, head, results);
    });
}

// Returns the array from query `first` on.
Array slice_queries(Array array, int axis, int64_t first) {
    if (array) array.data = (char*)array.data + first * array.stride[axis] * (int64_t)dtype_size(array.dtype);
    return array;
}

}  // namespace

// Chunks are merged by scaled scores, which may overflow; the other kernel subtracts the maximum before scaling. So
// larger scales, which have no practical use, are left to that kernel.
constexpr double largest_scale = 0x1p32;

// Packing reads and writes every key once more, and makes products faster. Heads are multiplied separately, so the gain
// depends on the queries per head; it is larger in bfloat16. The rule is fitted to times measured on a Zen 5 with 1 to
// 64 queries, 16 to 4,096 keys, head_dim 32 and 64, and groups of 1, 4 and 8. The chosen kernel takes at most 1.2 times
// as long as the other one, except for 4 queries of 8 heads in bfloat16 (1.4).
bool is_decode_suitable(const Problem& p) {
    const int64_t rows = p.group() * p.queries, gain = p.query.dtype == Dtype::bfloat16 ? 16 : 4;
    return p.dropout == 0 && rows <= max_decode_rows && p.queries * rows * gain <= p.keys &&
           fabs(p.scale) <= largest_scale;
}

void decode(const Problem& p, const ForwardResults& results, int threads) {
    decode_chunks(p, nullptr, nullptr, results, threads);
}

void paged(const Problem& p, const Pages& pages, const ForwardResults& results, int threads) {
    if (p.group() > max_decode_rows) throw std::invalid_argument("query: expected at most 64 heads to one of key_pages");
    const int64_t step = max_decode_rows / p.group();
    for (int64_t first = 0; first < p.queries; first += step) {
        Problem part = p;
        part.queries = p.queries - first < step ? p.queries - first : step;
        part.offset = first - p.queries;  // from the end of each sequence
        part.query = slice_queries(p.query, 2, first);
        part.sinks = slice_queries(p.sinks, 2, first);
        decode_chunks(part, &pages, (const int64_t*)pages.lengths.data,
                  {slice_queries(results.output, 2, first), slice_queries(results.lse, 3, first), {}, {}}, threads);
    }
}

}  // namespace regard

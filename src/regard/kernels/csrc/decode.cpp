// Decoding: the keys of each (batch, key head) are cut into chunks, a task each, so that all cores work on one sequence.
// The cut depends on the lengths alone: the bits do not depend on the number of threads.
#include "decode.h"

#include <stdexcept>

#include "isa.h"
#include "parallel.h"

namespace regard {

namespace {

constexpr int64_t chunk_keys = chunk_tiles * tile;
constexpr int64_t most_rows = 64;        // rows of a chunk: they are counted in the bits of a word
constexpr int64_t small_join = 1 << 16;  // numbers that one thread joins sooner than two

size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t bytes_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::float64: return 8;
        case Dtype::float32: return 4;
        default: return 2;
    }
}

// Runs every chunk, then joins them. `lengths` are the keys of each batch entry, or null for the problem's.
void in_chunks(const Problem& p, const Pages* pages, const int64_t* lengths, const ForwardResults& results,
               int threads) {
    const Kernels& k = kernels_for(p.query.dtype);
    // starts[b]: the chunks of a head of the batch entries before b
    Scratch of_starts = Scratch::of<int64_t>({p.batch + 1});
    int64_t* starts = of_starts.as<int64_t>();
    starts[0] = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
        int64_t keys = lengths ? lengths[b] : p.keys;
        starts[b + 1] = starts[b] + (keys + chunk_keys - 1) / chunk_keys;
    }
    const int64_t tasks = starts[p.batch] * p.key_heads;
    const size_t each = k.decode_left(p), work = whole_lines(k.decode_scratch(p));
    Scratch left = Scratch::of<char>({tasks, (int64_t)each}), scratch = Scratch::of<char>({threads, (int64_t)work});
    parallel_for(tasks, threads, [&](int64_t task, int thread) {
        int64_t b = 0, last = p.batch - 1;  // the batch entry that the task belongs to
        while (b < last) {
            int64_t middle = b + (last - b + 1) / 2;
            if (starts[middle] * p.key_heads <= task)
                b = middle;
            else
                last = middle - 1;
        }
        int64_t chunks = starts[b + 1] - starts[b], own = task - starts[b] * p.key_heads;
        k.decode_chunk(p, pages, b, own / chunks, own % chunks, left.as<char>() + (size_t)task * each,
                       scratch.as<char>() + (size_t)thread * work);
    });
    const int64_t numbers = tasks * (int64_t)(each / sizeof(float));
    parallel_for(p.batch * p.key_heads, numbers < small_join ? 1 : threads, [&](int64_t unit, int) {
        int64_t b = unit / p.key_heads, head = unit % p.key_heads, chunks = starts[b + 1] - starts[b];
        char* own = left.as<char>() + (size_t)(starts[b] * p.key_heads + head * chunks) * each;
        k.decode_join(p, own, chunks, b, head, results);
    });
}

// The array from query `first` on.
Array from_query(Array array, int axis, int64_t first) {
    if (array) array.data = (char*)array.data + first * array.stride[axis] * bytes_of(array.dtype);
    return array;
}

}  // namespace

bool decode_suits(const Problem& p) {
    return p.dropout == 0 && p.group() * p.queries <= most_rows;
}

void decode(const Problem& p, const ForwardResults& results, int threads) {
    in_chunks(p, nullptr, nullptr, results, threads);
}

void paged(const Problem& p, const Pages& pages, const ForwardResults& results, int threads) {
    if (p.group() > most_rows) throw std::invalid_argument("query: expected at most 64 heads to one of key_pages");
    const int64_t step = most_rows / p.group();
    for (int64_t first = 0; first < p.queries; first += step) {
        Problem part = p;
        part.queries = p.queries - first < step ? p.queries - first : step;
        part.offset = first - p.queries;  // from the end of each sequence
        part.query = from_query(p.query, 2, first);
        in_chunks(part, &pages, (const int64_t*)pages.lengths.data,
                  {from_query(results.output, 2, first), from_query(results.lse, 3, first), {}}, threads);
    }
}

}  // namespace regard

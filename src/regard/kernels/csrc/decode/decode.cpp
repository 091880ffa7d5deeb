// Decoding: the keys of each (batch, key head) are split into chunks, so that all cores work on one sequence, and whoever
// computes the last chunk of a (batch, key head) joins them. The split depends on the lengths only, and chunks are joined in
// order, so the bits do not depend on the number of threads.
#include <math.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "decode/int8_row_kernels.h"
#include "drivers.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"
#include "tables/table_in_use.h"

namespace regard {

namespace {

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

const DecodeKernels& kernels_for(const Problem& p, Dtype stored) {
    return stored == Dtype::int8 ? int8_row_kernels_in_use(p.query.dtype).decode : decode_kernels_in_use(p);
}

// The chunks of one call, in the order of batch entries, then of key heads.
class Chunks {
public:
    Chunks(const Problem& p, const Pages* pages, const ForwardResults& results, int threads)
        : p_(p), pages_(pages), results_(results), kernels_(kernels_for(p, pages ? pages->key.dtype : p.key.dtype)) {
        starts_.reserve(static_cast<size_t>(p.batch) + 1);
        starts_.push_back(0);
        for (int64_t b = 0; b < p.batch; ++b)
            starts_.push_back(starts_.back() + p.key_heads * ceil_div(keys_of(b), tiles_of(b) * tile));
        partials_ = {count(), kernels_.partial_bytes(p)};
        scratch_ = {threads, kernels_.scratch(p)};
        left_ = std::vector<std::atomic<int64_t>>(static_cast<size_t>(p.batch * p.key_heads));
        for (int64_t unit = 0; unit < p.batch * p.key_heads; ++unit)
            left_[static_cast<size_t>(unit)] = chunks_of(unit / p.key_heads);
    }

    int64_t count() const { return starts_.back(); }

    void run(int64_t chunk, int thread) {
        const int64_t b = std::upper_bound(starts_.begin(), starts_.end(), chunk) - starts_.begin() - 1;
        const int64_t each = chunks_of(b), head = (chunk - start_of(b)) / each, number = (chunk - start_of(b)) % each;
        const int64_t step = tiles_of(b), first = number * step;
        kernels_.chunk(p_, pages_, b, head, first, first + step, partials_[chunk], scratch_[thread]);
        if (--left_[static_cast<size_t>(b * p_.key_heads + head)] == 0)  // all partial results are visible here
            kernels_.join(p_, partials_[chunk - number], each, b, head, results_);
    }

    // The results of entries without keys.
    void finish_empty() {
        for (int64_t b = 0; b < p_.batch; ++b)
            for (int64_t head = 0; head < p_.key_heads && chunks_of(b) == 0; ++head)
                kernels_.join(p_, scratch_[0], 0, b, head, results_);
    }

private:
    int64_t keys_of(int64_t b) const { return pages_ != nullptr ? pages_->length(b) : p_.keys; }
    int64_t tiles_of(int64_t b) const { return tiles_in_chunk(p_, keys_of(b)); }
    int64_t start_of(int64_t b) const { return starts_[static_cast<size_t>(b)]; }
    // Of each key head.
    int64_t chunks_of(int64_t b) const { return (start_of(b + 1) - start_of(b)) / p_.key_heads; }

    const Problem& p_;
    const Pages* pages_;
    const ForwardResults& results_;
    const DecodeKernels& kernels_;
    std::vector<int64_t> starts_;  // the first chunk of each batch entry
    std::vector<std::atomic<int64_t>> left_;  // chunks that each (batch, key head) waits for
    ScratchParts partials_, scratch_;
};

// If pages is null, the keys are those of the problem. The keys, and the values, of adjacent chunks are adjacent in memory, so a
// thread owns a range of them, and each goes on where the one before prefetched: to begin elsewhere costs two thirds of a
// microsecond, of six for half a thousand keys in bfloat16.
void decode_chunks(const Problem& p, const Pages* pages, const ForwardResults& results, int threads) {
    Chunks chunks(p, pages, results, threads);
    parallel_for_owned(chunks.count(), threads, [&](int64_t chunk, int thread) { chunks.run(chunk, thread); });
    chunks.finish_empty();
}

}  // namespace

const Int8RowKernels& int8_row_kernels_in_use(Dtype tokens) { REGARD_RETURN_TABLE(int8_row_kernels(tokens)); }

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

// Also of keys and values that are rounded to int8, for which there is no alternative: queries in float32 or bfloat16, of which
// a key head has at most max_decode_rows.
void decode(const Problem& p, const ForwardResults& results, int threads) { decode_chunks(p, nullptr, results, threads); }

void decode_in_pages(const Problem& p, const Pages& pages, const ForwardResults& results, int threads) {
    decode_chunks(p, &pages, results, threads);
}

}  // namespace regard

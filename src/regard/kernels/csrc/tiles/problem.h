// One call of attention, as the input of kernels: plain structures without ownership.
//
//     query   (batch, heads, queries, head_dim)
//     key     (batch, key_heads, keys, head_dim)        heads is a multiple of key_heads
//     value   (batch, key_heads, keys, value_dim)
//
//     score_ij  = scale * q_i . k_j + bias_ij           where the mask allows, else -infinity
//     weight_ij = exp(score_ij - lse_i)                 lse_i = ln (sum_j exp(score_ij) [+ exp(sink_i)])
//     output_i  = sum_j weight_ij value_j               Vaswani et al. 2017, equation 1
//
// or with weights of another function of the scores (WeightFunction); with a softcap (softcap.h), the cap is applied to
// the scaled products before the bias is added. Sinks: see attention_sink.h.
//
// Strides are in elements and may be 0 (broadcast) or negative.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/debug_assert.h"

// Functions that are compiled for several instruction sets must always be inlined: else the linker would keep one of
// them, perhaps one that this processor cannot run. The build checks that (see symbols.cmake).
#define REGARD_INLINE inline __attribute__((always_inline))

namespace regard {

enum class Dtype : int32_t { float32, float64, bfloat16, float16, boolean, int32, int64, absent, int8, uint8 };

REGARD_INLINE size_t dtype_size(Dtype dtype) {
    switch (dtype) {
        case Dtype::float64:
        case Dtype::int64: return 8;
        case Dtype::float32:
        case Dtype::int32: return 4;
        case Dtype::bfloat16:
        case Dtype::float16: return 2;
        case Dtype::boolean:
        case Dtype::int8:
        case Dtype::uint8:
        case Dtype::absent: break;
    }
    return 1;
}

// The dtype of sums and statistics: float64 for float64, else float32.
REGARD_INLINE Dtype dtype_of_sums(Dtype dtype) { return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32; }

// Calls body(a number of the type of sums) for a dtype.
template <class Body>
REGARD_INLINE void with_type_of_sums(Dtype dtype, Body body) {
    if (dtype == Dtype::float64)
        body(double());
    else
        body(float());
}

// Always four dimensions: smaller arrays have leading sizes of 1 and strides of 0.
struct Array {
    void* data = nullptr;
    Dtype dtype = Dtype::absent;
    int64_t shape[4] = {1, 1, 1, 1};
    int64_t stride[4] = {0, 0, 0, 0};
    // Rows of an array of tokens that are listed, (shape[0], shape[1], shape[2]): row i is rows[i] of the `row_count` in
    // memory, or zeros for -1. For functions that say so; null: the rows are those in memory.
    const int32_t* rows = nullptr;
    int64_t row_count = 0;

    REGARD_INLINE explicit operator bool() const { return dtype != Dtype::absent; }
    REGARD_INLINE int64_t at(int64_t a, int64_t b, int64_t c, int64_t d) const {
        return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
    }
    REGARD_INLINE const int32_t* rows_from(int64_t a, int64_t b, int64_t c) const {
        return rows + (a * shape[1] + b) * shape[2] + c;
    }
};

inline constexpr int64_t unbounded_low = INT64_MIN / 4;
inline constexpr int64_t unbounded_high = INT64_MAX / 4;
inline constexpr int64_t tile = 64;  // queries and keys in a tile

REGARD_INLINE int64_t ceil_div(int64_t count, int64_t by) {
    REGARD_ASSERT(count >= 0 && by > 0);  // a negative quotient would be cut towards 0
    return (count + by - 1) / by;
}

// Bytes in whole cache lines, as parts of scratch memory have them.
REGARD_INLINE size_t align_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The tokens in a tile, of `count` tokens: 64, or fewer in the last tile.
REGARD_INLINE int64_t count_in_tile(int64_t count, int64_t index) {
    REGARD_ASSERT(index >= 0 && index * tile < count);
    return count - index * tile < tile ? count - index * tile : tile;
}

// Tiles first .. past - 1.
struct TileRange {
    int64_t first = 0, past = 0;

    REGARD_INLINE bool contains(int64_t index) const { return first <= index && index < past; }
};

// The tiles with tokens lowest .. highest, of `count` tokens. Both bounds are cut to the tokens before anything follows from
// them: they come from a band, whose bounds may be far outside.
REGARD_INLINE TileRange tiles_with(int64_t lowest, int64_t highest, int64_t count) {
    lowest = lowest > 0 ? lowest : 0;
    highest = highest < count - 1 ? highest : count - 1;
    if (highest < lowest) return {};
    const TileRange range = {lowest / tile, highest / tile + 1};
    REGARD_ASSERT(range.first < range.past && range.past <= ceil_div(count, tile));
    return range;
}

// The softmax is computed in powers of two: exp(s - m) = 2^((s - m) log2 e). A score itself is not multiplied by log2
// e: one near the largest number, such as the -3.4e38 that is often used instead of -infinity, would become infinite.
inline constexpr double log2_e = 1.4426950408889634;
inline constexpr double ln_2 = 0.6931471805599453;

// The mask: query i may attend to key j if every part that is present allows it.
struct Mask {
    // The band: query i may attend to key j only if i + low <= j <= i + high.
    int64_t low = unbounded_low, high = unbounded_high;
    // The interval: entry b of the batch may attend to key j only if start[b] <= j < stop[b]. Null: unbounded.
    const int64_t* start = nullptr;
    const int64_t* stop = nullptr;
    // The tile map: see regard/masks/tiles.py. Null row_start: absent. Sizes 1 stand for all batches or heads.
    const int64_t* row_start = nullptr;  // (tile_batch, tile_heads, query_tiles + 1)
    const int32_t* key_tile = nullptr;
    const int32_t* bitmap = nullptr;
    const uint64_t* bitmaps = nullptr;  // (distinct, 64): bit j of word i
    int64_t tile_batch = 1, tile_heads = 1;
    // A bool array that broadcasts to (batch, heads, queries, keys), or absent.
    Array dense;
};

// How scores become weights: see weight_function.h.
enum class WeightFunction { softmax, sigmoid };

// A table of biases by distance is float32 (float64 for float64) with contiguous rows, followed by a tile of zeros, so
// that 64 numbers can be read from any distance.
struct Problem {
    int64_t batch = 0, heads = 0, key_heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0;
    Array query, key, value;
    // Pages of the one entry of the batch (drivers.h), or absent. Then key and value are (pages, key_heads, page_size, size).
    Array page_table;
    Mask mask;
    Array bias;            // broadcasts to (batch, heads, queries, keys), or absent; any floating dtype
    Array table;           // (1, 1, heads or 1, distances): bias by distance, or absent; see above
    int64_t table_lowest;  // the distance j - i - offset of the table's first column
    Array vector;          // (1, 1, heads, head_dim): the score vector of additive attention (additive.h), or absent
    WeightFunction weight_function = WeightFunction::softmax;
    Array row_bias;        // (1, batch, heads, queries) in the dtype of sums: b_i of a sigmoid, in the forward pass
    Array sinks;           // broadcasts to (batch, heads, queries, 1), or absent; any floating dtype
    double softcap = 0;    // 0: none
    int64_t offset = 0;    // position of query 0 among the keys: keys - queries
    double scale = 1;
    double dropout = 0;
    uint64_t seed = 0;

    REGARD_INLINE int64_t group() const { return heads / key_heads; }
    REGARD_INLINE int64_t query_tiles() const { return ceil_div(queries, tile); }
    REGARD_INLINE int64_t key_tiles() const { return ceil_div(keys, tile); }
    // The number of queries, or keys, in a tile.
    REGARD_INLINE int64_t queries_in(int64_t query_tile) const { return count_in_tile(queries, query_tile); }
    REGARD_INLINE int64_t keys_in(int64_t key_tile) const { return count_in_tile(keys, key_tile); }
};

// The number of a page in a table of int32 or int64.
REGARD_INLINE int64_t page_index(const Array& table, int64_t entry, int64_t page) {
    const int64_t at = table.at(0, 0, entry, page);
    return table.dtype == Dtype::int32 ? ((const int32_t*)table.data)[at] : ((const int64_t*)table.data)[at];
}

}  // namespace regard

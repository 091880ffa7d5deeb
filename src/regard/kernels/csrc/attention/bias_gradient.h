// The gradients of a bias of scores and of a table of biases by distance, from dS of one pair of tiles.
//
//     bias[i][j] += dS_ij,    table[d] += sum of dS_ij with j - i = d
//
// If each row were added to the table one element to the left of the previous one, loads would overlap recent stores, and
// wait for them. So rows that are a multiple of `width` apart are added to the same row of `skewed_sums`, shifted by whole
// vectors, and the rows of `skewed_sums` are added to the table once per pair of tiles.
//
//     skewed_sums[r % width][j - (r - r % width) + 64] += dS[r][j]
//     table[d] += sum_b skewed_sums[b][d + b + 64]                         d = j - r
#pragma once

#include <string.h>

#include "tiles/mask_tiles.h"
#include "tiles/tile_kernels.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class Number>
struct BiasGradient {
    static constexpr int width = lanes<Number>;
    static constexpr int64_t skewed_row = 3 * tile, skewed_numbers = width * skewed_row;

    const Problem& p;
    const BackwardResults& results;
    int64_t batch, head;
    Number* skewed_sums;  // null if no table has a gradient

    // For the first row of a pair of tiles.
    REGARD_INLINE void begin() const {
        if (results.grad_table) memset(skewed_sums, 0, sizeof(Number) * (size_t)skewed_numbers);
    }

    // Adds dS of 64 keys of a query, row `row` of its tile.
    REGARD_INLINE void add(int64_t query, int64_t row, int64_t key_tile, const Number* ds) const {
        if (results.grad_bias) add_to_bias(query, key_tile, ds);
        if (results.grad_table) add_to_skewed(row, ds);
    }

    // After the last row of a pair of tiles.
    REGARD_INLINE void finish(int64_t query_tile, int64_t key_tile, int64_t rows) const {
        if (results.grad_table) add_to_table(query_tile, key_tile, rows);
    }

  private:
    void add_to_bias(int64_t query, int64_t key_tile, const Number* ds) const {
        int64_t first = key_tile * tile, count = p.keys_in(key_tile), j = 0;
        const Array& b = results.bias;
        Number* to = (Number*)b.data + b.at(batch, head, query, first);
        if (b.stride[3] == 1)
            for (; j + width <= count; j += width) store(to + j, load(to + j) + load(ds + j));
        for (; j < count; ++j) to[j * b.stride[3]] += ds[j];
    }

    REGARD_INLINE void add_to_skewed(int64_t row, const Number* ds) const {
        Number* to = skewed_sums + row % width * skewed_row + tile - row / width * width;
        for (int64_t j = 0; j < tile; j += width) store(to + j, load(to + j) + load(ds + j));
    }

    void add_to_table(int64_t query_tile, int64_t key_tile, int64_t rows) const {
        const Array& t = results.table;
        int64_t distance = (key_tile - query_tile) * tile - p.offset - p.table_lowest;
        Number* to = (Number*)t.data + (t.shape[2] == 1 ? 0 : head) * t.stride[2] + distance;
        int64_t d = 1 - rows, stop = p.keys_in(key_tile);
        REGARD_ASSERT(0 <= distance + d && distance + stop <= t.shape[3]);
        for (; d + width <= stop; d += width) {
            vec<Number> sum = load(to + d);
            for (int64_t b = 0; b < width; ++b) sum += load(skewed_sums + b * skewed_row + d + b + tile);
            store(to + d, sum);
        }
        for (; d < stop; ++d)
            for (int64_t b = 0; b < width; ++b) to[d] += skewed_sums[b * skewed_row + d + b + tile];
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// The gradients of the weights of a linear layer of many tokens.
//
//     of_weight_oi = sum_r g_ro x_ri,   of_bias_o = sum_r g_ro         x (rows, inputs), g (rows, outputs), the gradient
//                                                                      of the outputs
//
// Columns of x and of g are packed 64 at a time, and each pair of packed blocks of columns is a task that computes 64 x 64
// sums. So every block of x serves all outputs and every block of g all inputs, and no sum depends on the number of
// threads.
#pragma once

#include "linear/weight_gradient_kernels.h"
#include "tiles/gemm_microkernel.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

struct WeightGradient {
    typedef Float32 A;
    static constexpr int64_t n = lanes<float>, depth = 128;  // rows for which 64 columns fit the first cache

    // Copies `count` rows of columns first .. first + 63, with zeros behind the last column. Adds the columns to `sums`
    // (64) unless it is null.
    static void pack(const Array& from, int64_t first_row, int64_t count, int64_t first, float* to, float* sums) {
        const int64_t columns = from.shape[3] - first < tile ? from.shape[3] - first : tile;
        const float* row = (const float*)from.data + from.at(0, 0, first_row, first);
        vfloat total[tile / n] = {};
        for (int64_t r = 0; r < count; ++r, row += from.stride[2], to += tile) {
            if (columns == tile) {
                for (int64_t v = 0; v < tile / n; ++v) store(to + v * n, load(row + v * n));
            } else {
                memcpy(to, row, sizeof(float) * (size_t)columns);
                memset(to + columns, 0, sizeof(float) * (size_t)(tile - columns));
            }
            if (sums)
                for (int64_t v = 0; v < tile / n; ++v) total[v] += load(to + v * n);
        }
        if (sums)
            for (int64_t v = 0; v < tile / n; ++v) store(sums + v * n, load(sums + v * n) + total[v]);
    }

    // sums (64 x 64) += transpose of left (rows x 64) times right (rows x 64)
    static void add_product(const float* left, const float* right, int64_t rows, float* sums) {
        for (int64_t row = 0; row < rows; row += depth) {
            const int64_t count = rows - row < depth ? rows - row : depth;
            const float *a = left + row * tile, *b = right + row * tile;
            for_panels(0, tile / n, [&](int64_t v, auto panel) {
                for_strips(tile, [&](int64_t first, auto strip) {
                    Sums<A, decltype(strip)::value, decltype(panel)::value> s;
                    float* to = sums + first * tile + v * n;
                    s.load_from(to, tile);
                    multiply(s, a + first, 1, tile, b + v * n, tile, count);
                    s.store_to(to, tile);
                });
            });
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

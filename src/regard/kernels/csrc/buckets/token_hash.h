// The bucket of each token, by float32 products with an error bound, and few in float64.
//
//     h(x) = argmax([x R; -x R])        R (head_dim, buckets / 2)
//
// The bucket is defined by the float64 sums s_c = sum_k x_k R_kc, k ascending: see regard/mechanisms/locality_hash.py.
// Products of two float32 numbers are exact in float64, so all processors round alike, with or without fused
// operations. A float32 product a_c, summed in any order, differs from s_c by less than
//
//     E = 2 (head_dim + 8) 2^-24 |x|_1 max |R| + (head_dim + 8) 2^-149
//
// (Higham 2002, "Accuracy and stability of numerical algorithms", section 3.1; twice what is needed, for the roundings
// of E itself and of the comparison; the last term is for subnormal numbers). If only one a_c is above max |a| - 2 E in
// absolute value, it is the choice, and has the sign of s_c. Else those above are computed in float64, and of equal ones
// the first is chosen. So is every column of a token whose products could overflow. Tokens with NaN or Inf get bucket 0.
#pragma once

#include <math.h>

#include "buckets/bucket_kernels.h"
#include "tiles/prefetch_row.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

REGARD_INLINE vfloat absolute(vfloat v) { return (vfloat)((vbits)v & 0x7fffffffu); }

// products (rows, width) = rows of x times the rotation, for `vectors` vectors of columns.
template <int rows, int vectors>
REGARD_INLINE void rotate_panel(const float* const* x, int64_t head_dim, const float* columns, int64_t width,
                                float* products) {
    vfloat sum[rows][vectors] = {};
    for (int64_t k = 0; k < head_dim; ++k) {
        vfloat column[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) column[v] = load(columns + k * width + v * lanes<float>);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const vfloat one = broadcast(x[r][k]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) sum[r][v] = multiply_add(one, column[v], sum[r][v]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) store(products + r * width + v * lanes<float>, sum[r][v]);
}

struct Hash {
    static constexpr int rows = 4;

    static REGARD_INLINE void rotate(const float* const* x, int64_t head_dim, const PackedRotation& of,
                                     float* products) {
        constexpr int64_t panel = panel_vectors * lanes<float>;
        int64_t c = 0;
        for (; c + panel <= of.width; c += panel)
            rotate_panel<rows, panel_vectors>(x, head_dim, of.columns + c, of.width, products + c);
        for (; c < of.width; c += lanes<float>)
            rotate_panel<rows, 1>(x, head_dim, of.columns + c, of.width, products + c);
    }

    static REGARD_INLINE float sum_absolute(const float* x, int64_t head_dim) {
        vfloat sum = {};
        int64_t k = 0;
        for (; k + lanes<float> <= head_dim; k += lanes<float>) sum += absolute(load(x + k));
        float total = sum_lanes<float>(sum);
        for (; k < head_dim; ++k) total += fabsf(x[k]);
        return total;
    }

    static REGARD_INLINE bool is_finite(const float* x, int64_t head_dim) {
        bool finite = true;
        for (int64_t k = 0; k < head_dim; ++k) finite &= x[k] - x[k] == 0;
        return finite;
    }

    // The bucket of one factor: `count` columns and as many opposite ones. Columns with an absolute product above
    // `bound` are compared in float64.
    static __attribute__((noinline)) int64_t compare_exactly(const float* x, int64_t head_dim, const float* columns,
                                                             int64_t width, int64_t count, const float* products,
                                                             float bound) {
        double most = -1;
        int64_t found = 0;
        for (int64_t c = 0; c < count; ++c) {
            if (!(fabsf(products[c]) > bound) && bound == bound) continue;
            double sum = 0;
            for (int64_t k = 0; k < head_dim; ++k) sum += (double)x[k] * (double)columns[k * width + c];
            if (fabs(sum) > most) {
                most = fabs(sum);
                found = sum < 0 ? count + c : c;
            }
        }
        return found;
    }

    static REGARD_INLINE int64_t compare(const float* x, int64_t head_dim, const float* columns, int64_t width,
                                         int64_t count, const float* products, float margin) {
        vfloat most = {};
        for (int64_t c = 0; c < count; c += lanes<float>) most = maximum(absolute(load(products + c)), most);
        const float bound = max_lane<float>(most) - margin;
        int64_t above = 0, found = 0;
        for (int64_t c = 0; c < count; c += lanes<float>) {
            const uint32_t bits = compare_greater(absolute(load(products + c)), broadcast(bound));
            if (!bits) continue;
            above += __builtin_popcount(bits);
            found = c + __builtin_ctz(bits);
        }
        if (above != 1) return compare_exactly(x, head_dim, columns, width, count, products, bound);
        return products[found] < 0 ? count + found : found;
    }

    static void hash(const HashArguments& given, const PackedRotation& of, int64_t batch, int64_t head, int64_t round,
                     int64_t first, int64_t stop, float* products) {
        const Array& tokens = given.tokens;
        const float error = 2 * (float)(given.head_dim + 8) * 0x1p-24f, floor = (float)(given.head_dim + 8) * 0x1p-149f;
        for (int64_t token = first; token < stop; token += rows) {
            const float* x[rows];
            for (int r = 0; r < rows; ++r)
                x[r] = (const float*)tokens.data + tokens.at(batch, head, (token + r < stop ? token + r : stop - 1), 0);
            for (int r = 0; r < rows; ++r)
                if (token + rows + r < stop)
                    prefetch_row((const float*)tokens.data + tokens.at(batch, head, token + rows + r, 0), given.head_dim);
            rotate(x, given.head_dim, of, products);
            for (int r = 0; r < rows && token + r < stop; ++r) {
                const float size = sum_absolute(x[r], given.head_dim);
                float margin = 2 * (error * size * of.largest + floor);
                int64_t bucket = 0, step = 1, at = 0;
                const bool usual = size * of.largest < 0x1p100f;
                if (size != 0 && (usual || is_finite(x[r], given.head_dim))) {
                    if (!usual) margin = NAN;
                    for (int64_t f = 0; f < given.factor_count; ++f) {
                        const int64_t factor = given.factors[f], count = factor / 2;
                        bucket += step * compare(x[r], given.head_dim, of.columns + at, of.width, count,
                                                 products + r * of.width + at, margin);
                        at += (count + column_block - 1) / column_block * column_block;
                        step *= factor;
                    }
                }
                int64_t* to = (int64_t*)given.buckets.data + given.buckets.at(batch, head, token + r, round);
                *to = bucket;
            }
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

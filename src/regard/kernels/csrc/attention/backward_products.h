// Backward pass, the three products that add up gradients: dQ += dS K by rows of dS, dV += W^T dO and dK += dS^T Q by its
// columns, in strips of rows that are read once.
#pragma once

#include "tiles/gemm_microkernel.h"
#include "tiles/mask_tiles.h"
#include "tiles/right_operand.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct BackwardProducts {
    typedef typename A::number number;
    typedef typename A::unit unit;
    static constexpr int width = lanes<number>;

    // to (n, stride) += left times the rows of `right` from `first` on. left: unit (r, k) is left[r * row + k * step].
    template <int n, class Right>
    static REGARD_INLINE void add(number* to, int64_t stride, const unit* left, int64_t row, int64_t step,
                                  const Right& right, int64_t first, int64_t depth) {
        for_panels(0, stride / width, [&](int64_t v0, auto panel) {
            constexpr int vectors = decltype(panel)::value;
            Sums<A, n, vectors> s;
            s.load_from(to + v0 * width, stride);
            multiply(s, left, row, step, right.at(first, v0), right.template step<vectors>(v0), depth);
            s.store_to(to + v0 * width, stride);
        });
    }

    // to (keys, stride) += transpose of left (rows, 64 keys) times right (rows, stride). Rows that may attend to no key
    // of a strip are left out; `bits` of each row, or null if all may attend to all.
    static void add_transposed(number* to, int64_t stride, const unit* left, const unit* right, int64_t rows, int64_t keys,
                               const uint64_t* bits) {
        for_strips(keys, [&](int64_t first, auto n) {
            constexpr int rows_of = decltype(n)::value;
            int64_t from = 0, stop = rows;
            if (bits) {
                uint64_t strip_bits = bit_range(first, first + rows_of);
                while (from < stop && !(bits[from] & strip_bits)) ++from;
                while (from < stop && !(bits[stop - 1] & strip_bits)) --stop;
                if (from >= stop) return;
            }
            int64_t u0 = from / A::per_unit, depth = count_units<A>(stop) - u0;
            add<rows_of>(to + first * stride, stride, left + u0 * tile + first, 1, tile, RowMajor<A>{right, stride}, u0,
                         depth);
        });
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

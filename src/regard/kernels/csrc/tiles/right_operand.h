// The right operand of a product of gemm_microkernel.h, in one of two layouts.
//
//     RowMajor  row k follows row k - 1, as tokens are in memory
//     Panels    the columns of a register tile (panel_vectors vectors) with all their rows, then those of the next one
//
// A product of a strip reads one panel from top to bottom. By rows that is a step of a whole row for every few bytes: with
// AVX2 a quarter of each row of 64 columns, which the caches neither prefetch nor keep well. Panels are read as they are in
// memory. With AVX-512 a panel of float32 has 64 columns, so of a matrix with 64 columns the two layouts are the same.
#pragma once

#include "tiles/gemm_microkernel.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct RowMajor {
    typedef typename A::unit unit;

    const unit* data;
    int64_t columns;  // units from row to row

    REGARD_INLINE const unit* at(int64_t row, int64_t vector) const { return data + row * columns + vector * lanes<unit>; }
    template <int vectors>
    REGARD_INLINE int64_t step(int64_t) const {
        return columns;
    }
};

template <class A>
struct Panels {
    typedef typename A::unit unit;
    static constexpr int n = lanes<unit>;
    // The matrix unit multiplies blocks of rows with any step: one panel has all columns.
    static constexpr int64_t width = A::has_matrix_unit ? (int64_t)1 << 40 : panel_vectors * n;

    const unit* data;
    int64_t rows, columns;  // columns: whole vectors

    // Unit (row, n * vector).
    REGARD_INLINE const unit* at(int64_t row, int64_t vector) const {
        const int64_t column = vector * n, first = column / width * width;
        return data + first * rows + row * panel_width(first) + (column - first);
    }
    // Units from row to row in the panel of a vector, of which `vectors` are read.
    template <int vectors>
    REGARD_INLINE int64_t step(int64_t vector) const {
        if constexpr (vectors == panel_vectors && !A::has_matrix_unit) return width;
        return panel_width(vector * n / width * width);
    }
    REGARD_INLINE int64_t panel_width(int64_t first) const { return columns - first < width ? columns - first : width; }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

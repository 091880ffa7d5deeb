// Products of bfloat16 on the matrix unit of the processor, Intel's AMX.
//
//     C += A B        A (16, 32) and B (32, 16) bfloat16, C (16, 16) float32, one instruction in 16 cycles
//
// Of its registers (matrix_registers.h) 2 are for A, 2 for B and 4 for C. B has pairs of adjacent rows side by side, which are
// the units of Bfloat16 (compute_types.h), so the right operands of all kernels are B as they are. A core multiplies sixteen
// times as fast as with AVX-512 in float32.
//
// An element of C has the same bits wherever it is in C, and whatever is in other rows and columns: 16 units are summed,
// then added to C. So scores that are computed again in the backward pass are those of the forward pass.
#pragma once

#include "tiles/gemm_microkernel.h"
#include "tiles/matrix_registers.h"
#include "tiles/pack.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Sums of two blocks of 16 rows (one, unless `both_rows`) and two of 16 columns (one, unless `both_columns`).
template <bool both_rows, bool both_columns>
struct MatrixSums {
    static constexpr int a = 0, b = 2, sum = 4;  // the first register of each

    // Calls body(register, row, column) for each block.
    template <class Body>
    static REGARD_INLINE void each(Body body) {
        body(Constant<sum>{}, 0, 0);
        if constexpr (both_columns) body(Constant<sum + 1>{}, 0, matrix_units);
        if constexpr (both_rows) body(Constant<sum + 2>{}, matrix_rows, 0);
        if constexpr (both_rows && both_columns) body(Constant<sum + 3>{}, matrix_rows, matrix_units);
    }
    static REGARD_INLINE void clear() {
        each([](auto at, int, int) { clear_matrix<decltype(at)::value>(); });
    }
    static REGARD_INLINE void load_from(const float* from, int64_t row) {
        each([&](auto at, int r, int c) { load_matrix<decltype(at)::value>(from + r * row + c, row); });
    }
    static REGARD_INLINE void store_to(float* to, int64_t row) {
        each([&](auto at, int r, int c) { store_matrix<decltype(at)::value>(to + r * row + c, row); });
    }
    // Adds the product of rows of `units` units, a multiple of 16, and as many rows of units.
    static REGARD_INLINE void multiply(const uint32_t* left, int64_t left_row, const uint32_t* right, int64_t right_row,
                                       int64_t units) {
        for (int64_t k = 0; k < units; k += matrix_units, left += matrix_units, right += matrix_units * right_row) {
            load_matrix<a>(left, left_row);
            if constexpr (both_rows) load_matrix<a + 1>(left + matrix_rows * left_row, left_row);
            load_matrix<b>(right, right_row);
            if constexpr (both_columns) load_matrix<b + 1>(right + matrix_units, right_row);
            multiply_matrices<sum, a, b>();
            if constexpr (both_columns) multiply_matrices<sum + 1, a, b + 1>();
            if constexpr (both_rows) multiply_matrices<sum + 2, a + 1, b>();
            if constexpr (both_rows && both_columns) multiply_matrices<sum + 3, a + 1, b + 1>();
        }
    }
};

// Calls body(row, column, MatrixSums) for blocks that cover `rows` rows and `columns` columns, multiples of 16.
template <class Body>
REGARD_INLINE void for_matrix_blocks(int64_t rows, int64_t columns, Body body) {
    auto for_columns = [&](int64_t r, auto both_rows) {
        constexpr bool both = decltype(both_rows)::value;
        int64_t c = 0;
        for (; c + 2 * matrix_units <= columns; c += 2 * matrix_units) body(r, c, MatrixSums<both, true>{});
        if (c < columns) body(r, c, MatrixSums<both, false>{});
    };
    int64_t r = 0;
    for (; r + 2 * matrix_rows <= rows; r += 2 * matrix_rows) for_columns(r, Constant<1>{});
    if (r < rows) for_columns(r, Constant<0>{});
}

// A matrix of numbers or units.
template <class T>
struct Rows {
    T* data;
    int64_t row;
};

// The number type of kernels for the matrix unit. Rows of units are filled up with zeros to a multiple of 16.
struct Bfloat16Matrices : Bfloat16 {
    static constexpr bool has_matrix_unit = true;
    typedef MatrixUnit Unit;
    static constexpr int group = 4;  // 32 rows of scores and weights of a group are 48 KiB, an L1 cache

    // to = left . right, or added to it. The three sizes are multiples of 16, `units` that of units.
    static void multiply_matrix(Rows<float> to, Rows<const uint32_t> left, Rows<const uint32_t> right, int64_t rows,
                                int64_t columns, int64_t units) {
        for_matrix_blocks(rows, columns, [&](int64_t r, int64_t c, auto sums) {
            sums.clear();
            sums.multiply(left.data + r * left.row, left.row, right.data + c, right.row, units);
            sums.store_to(to.data + r * to.row + c, to.row);
        });
    }
    static void add_matrix_product(Rows<float> to, Rows<const uint32_t> left, Rows<const uint32_t> right, int64_t rows,
                                   int64_t columns, int64_t units) {
        for_matrix_blocks(rows, columns, [&](int64_t r, int64_t c, auto sums) {
            sums.load_from(to.data + r * to.row + c, to.row);
            sums.multiply(left.data + r * left.row, left.row, right.data + c, right.row, units);
            sums.store_to(to.data + r * to.row + c, to.row);
        });
    }
};
template <>
struct Pair<Bfloat16Matrices> : Pair<Bfloat16> {};

// As the function of gemm_microkernel.h, for the few rows of a strip: step must be 1. The sums are overwritten.
template <int rows, int vectors>
REGARD_INLINE void multiply_in_parts(Sums<Bfloat16Matrices, rows, vectors>& sums, const uint32_t* a, int64_t row,
                                     int64_t, const uint32_t* b, int64_t width, int64_t depth) {
    constexpr int columns = vectors * matrix_units;
    alignas(64) uint32_t left[matrix_rows * matrix_units];  // of which only `rows` rows matter
    alignas(64) float products[matrix_rows * columns];
    auto each_register = [](auto body) {
        body(Constant<0>{});
        if constexpr (vectors > 1) body(Constant<1>{});
        if constexpr (vectors > 2) body(Constant<2>{});
        if constexpr (vectors > 3) body(Constant<3>{});
    };
    each_register([](auto v) { clear_matrix<4 + decltype(v)::value>(); });
    for (int64_t k = 0; k < depth; k += matrix_units) {
        for (int r = 0; r < rows; ++r) store(left + r * matrix_units, load(a + r * row + k));
        load_matrix<0>(left, matrix_units);
        each_register([&](auto v) {
            constexpr int at = decltype(v)::value, right = 2 + at % 2;
            load_matrix<right>(b + k * width + at * matrix_units, width);
            multiply_matrices<4 + at, 0, right>();
        });
    }
    each_register([&](auto v) {
        constexpr int at = decltype(v)::value;
        store_matrix<4 + at>(products + at * matrix_units, columns);
    });
    sums.load_from(products, columns);
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

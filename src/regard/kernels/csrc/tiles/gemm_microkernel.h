// GEMM microkernel: a register tile of rows x vectors of sums, accumulated over `depth` products.
//
//     sum[r][v] += a[r * row + k * step] * b[k * width + v]          for k in 0 .. depth
//
// Each step loads `vectors` vectors of b and broadcasts `rows` units of a, for rows * vectors multiply-adds. With 6 x 4
// sums and two multiply-adds per cycle with latency 4, both units are always busy: 24 sums / 2 = 12 cycles > 4.
#pragma once

#include "tiles/compute_types.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

inline constexpr int strip = 6;  // rows of a register tile

// Steps of a product in one turn of its loop. Where a step has few multiply-adds, the loop itself and addresses are a seventh of
// its instructions, which count beside another thread of the core.
inline constexpr int steps_per_turn = panel_vectors == 2 ? 4 : 1;

template <class A, int rows, int vectors>
struct Sums {
    typedef typename A::number number;
    static constexpr int panel = vectors, height = rows;
    vec<number> at[rows][vectors];

    // Calls body(row, vector, sum) for every sum. All loops over sums must use this function: if a single one were not
    // unrolled, the compiler would keep all sums in memory.
    template <class Body>
    REGARD_INLINE void each(Body body) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) body(r, v, at[r][v]);
    }
    REGARD_INLINE void clear() {
        each([](int, int, vec<number>& sum) { sum = vec<number>{}; });
    }
    REGARD_INLINE void load_from(const number* from, int64_t row) {
        each([&](int r, int v, vec<number>& sum) { sum = load(from + r * row + v * lanes<number>); });
    }
    REGARD_INLINE void add_from(const number* from, int64_t row) {
        each([&](int r, int v, vec<number>& sum) { sum += load(from + r * row + v * lanes<number>); });
    }
    REGARD_INLINE void store_to(number* to, int64_t row) {
        each([&](int r, int v, vec<number>& sum) { store(to + r * row + v * lanes<number>, sum); });
    }
};

// a: unit (r, k) is a[r * row + k * step]. b: rows are `width` units apart; their first vectors are read.
template <class A, int rows, int vectors>
REGARD_INLINE void multiply(Sums<A, rows, vectors>& sums, const typename A::unit* a, int64_t row, int64_t step,
                            const typename A::unit* b, int64_t width, int64_t depth) {
    typedef typename A::unit unit;
#pragma GCC unroll steps_per_turn
    for (int64_t k = 0; k < depth; ++k) {
        vec<unit> right[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) right[v] = load(b + v * lanes<unit>);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            unit left = a[r * row];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) sums.at[r][v] = A::multiply_add(left, right[v], sums.at[r][v]);
        }
        a += step;
        b += width;
    }
}

// The same, as sums of at most `part` products each: in a sum of n products each rounding is relative to the sum so far,
// so of 512 products the error was six times that of sums of 128. Wide heads, as of latent attention, have many.
template <class A, int rows, int vectors>
REGARD_INLINE void multiply_in_parts(Sums<A, rows, vectors>& sums, const typename A::unit* a, int64_t row, int64_t step,
                                     const typename A::unit* b, int64_t width, int64_t depth) {
    constexpr int64_t part = 128, stride = vectors * lanes<typename A::number>;
    multiply(sums, a, row, step, b, width, depth < part ? depth : part);
    for (int64_t first = part; first < depth; first += part) {
        typename A::number before[rows * stride];
        sums.store_to(before, stride);
        sums.clear();
        const int64_t count = depth - first < part ? depth - first : part;
        multiply(sums, a + first * step, row, step, b + first * width, width, count);
        sums.add_from(before, stride);
    }
}

// A compile-time constant as an argument: the number of rows or vectors that a body gets.
template <int n>
struct Constant {
    static constexpr int value = n;
};

// Splits `rows` rows into strips of 6, 4, 2 and 1: calls body(first row, Constant).
template <class Body>
REGARD_INLINE void for_strips(int64_t rows, Body body) {
    REGARD_ASSERT(rows >= 0);
    int64_t first = 0;
    for (; rows - first >= 6; first += 6) body(first, Constant<6>{});
    if (rows - first >= 4) {
        body(first, Constant<4>{});
        first += 4;
    }
    if (rows - first >= 2) {
        body(first, Constant<2>{});
        first += 2;
    }
    if (rows - first >= 1) body(first, Constant<1>{});
}

// Splits the vectors first .. stop - 1 at multiples of panel_vectors: calls body(first vector, Constant).
template <class Body>
REGARD_INLINE void for_panels(int64_t first, int64_t stop, Body body) {
    REGARD_ASSERT(0 <= first && first <= stop);
    while (first < stop) {
        const int64_t whole = panel_vectors - first % panel_vectors, count = stop - first < whole ? stop - first : whole;
        if (count == panel_vectors) body(first, Constant<panel_vectors>{});
        if constexpr (panel_vectors > 3)
            if (count == 3) body(first, Constant<3>{});
        if constexpr (panel_vectors > 2)
            if (count == 2) body(first, Constant<2>{});
        if (count == 1) body(first, Constant<1>{});
        first += count;
    }
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

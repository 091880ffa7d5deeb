// Products of a few queries with the rows of one tile, read where they lie.
//
//     scores[r][j]  = query[r] . key[j]                       a dot product along the row
//     output[r]     = shrink[r] * output[r] + sum_j weights[r][j] value[j]
//
// Each unit of a row is loaded once for up to four queries. `rows` x `keys` dot products make as many vectors as a vector
// has lanes, and are summed over their lanes all together, in log2(lanes) rounds. While a row is multiplied, the one `ahead`
// rows further on is fetched: addresses of the next tile follow those of this one.
#pragma once

#include "multiply.h"
#include "pack.h"
#include "rows.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Of two vectors, each half summed onto the other: lane c holds a[c] + a[c ^ half] or b[c] + b[c ^ half], in turns.
template <int half, class U, int... column>
REGARD_INLINE vec<U> fold(vec<U> a, vec<U> b, Columns<column...>) {
    constexpr int n = lanes<U>;
    return __builtin_shufflevector(a, b, (column & half ? n + column : column)...) +
           __builtin_shufflevector(a, b, (column & half ? n + column - half : column + half)...);
}

// Lane i of the result is the sum of the lanes of v[i].
template <class U>
REGARD_INLINE vec<U> sums_of_lanes(vec<U>* v) {
    typedef typename ColumnsUpTo<lanes<U>>::type All;
    if constexpr (lanes<U> > 8)
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) v[i] = fold<8, U>(v[i], v[i + 8], All{});
    if constexpr (lanes<U> > 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) v[i] = fold<4, U>(v[i], v[i + 4], All{});
    if constexpr (lanes<U> > 2)
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) v[i] = fold<2, U>(v[i], v[i + 2], All{});
    return fold<1, U>(v[0], v[1], All{});
}

// Sums, still spread over lanes, of the products of `keys` keys with `rows` queries: sums[r * step + j].
template <int rows, int keys, int step, class T>
REGARD_INLINE void multiply_keys(const T* const* key, int64_t ahead, int64_t width,
                                 const typename Unit<T>::factor* query, int64_t stride,
                                 vec<typename Unit<T>::number>* sums) {
    constexpr int per = Unit<T>::per;
    auto take = [&](int64_t k, auto part) {
#pragma GCC unroll 4
        for (int j = 0; j < keys; ++j) {
            __builtin_prefetch(key[j + ahead] + k);
            auto x = decltype(part)::value ? load_part(key[j] + k, width - k) : load_unit(key[j] + k);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r)
                sums[r * step + j] = add_products<T>(x, query + r * stride + k, sums[r * step + j]);
        }
    };
    int64_t k = 0;
    for (; k + per <= width; k += per) take(k, Constant<0>{});
    if (k < width) take(k, Constant<1>{});
}

// Scores of the keys from .. stop - 1, whole vectors of them. Queries are `stride` factors apart.
template <int rows, class T, class Number>
REGARD_INLINE void score_rows(const T* const* key, int64_t ahead, int64_t from, int64_t stop, int64_t width,
                              const typename Unit<T>::factor* query, int64_t stride, Number* scores) {
    constexpr int n = lanes<Number>, keys = n / rows, few = keys < 4 ? keys : 4;
    for (int64_t j0 = from; j0 < stop; j0 += keys) {
        vec<Number> sums[n] = {};
#pragma GCC unroll 4
        for (int j = 0; j < keys; j += few)
            multiply_keys<rows, few, keys>(key + j0 + j, ahead, width, query, stride, sums + j);
        Number together[n];
        store(together, sums_of_lanes<Number>(sums));
        for (int r = 0; r < rows; ++r) memcpy(scores + r * tile + j0, together + r * keys, sizeof(Number) * keys);
    }
}

inline constexpr int most_sums = vector_bytes == 64 ? 16 : 8;  // held in registers

// `units` units of the output from column c0 on; of the last one only `count` numbers are there.
template <int rows, int units, bool part, class T, class Number>
REGARD_INLINE void mix_columns(const T* const* value, int64_t ahead, int64_t from, int64_t stop, int64_t c0,
                               int64_t count, const Number* weights, const Number* shrink, Number* output,
                               int64_t stride) {
    constexpr int n = lanes<Number>, parts = Unit<T>::parts, per = Unit<T>::per, vectors = units * parts;
    constexpr int ways = rows * vectors * 2 <= most_sums ? 2 : 1;  // sums of every second key, so that adds overlap
    vec<Number> sums[ways][rows][vectors];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) {
            sums[0][r][v] = load(output + r * stride + c0 + v * n) * broadcast(shrink[r]);
            sums[ways - 1][r][v] = ways == 1 ? sums[0][r][v] : vec<Number>{};
        }
    for (int64_t j0 = from; j0 < stop; j0 += ways)
#pragma GCC unroll 2
        for (int way = 0; way < ways; ++way) {
            int64_t j = j0 + way;
            vec<Number> x[vectors];
#pragma GCC unroll 8
            for (int u = 0; u < units; ++u) {
                const T* at = value[j] + c0 + u * per;
                __builtin_prefetch(value[j + ahead] + c0 + u * per);
                Unit<T>::widen(part ? load_part(at, count) : load_unit(at), x + u * parts);
            }
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
                vec<Number> w = broadcast(weights[r * tile + j]);
#pragma GCC unroll 16
                for (int v = 0; v < vectors; ++v) sums[way][r][v] = multiply_add(w, x[v], sums[way][r][v]);
            }
        }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v)
            store(output + r * stride + c0 + v * n, ways == 1 ? sums[0][r][v] : sums[0][r][v] + sums[ways - 1][r][v]);
}

template <int rows, class T, class Number>
REGARD_INLINE void mix_rows(const T* const* value, int64_t ahead, int64_t from, int64_t stop, int64_t width,
                            const Number* weights, const Number* shrink, Number* output, int64_t stride) {
    constexpr int per = Unit<T>::per, fit = most_sums / rows / Unit<T>::parts;
    constexpr int most = fit > 8 ? 8 : fit;
    int64_t c = 0;
    auto take = [&](auto units, auto part) {
        mix_columns<rows, decltype(units)::value, decltype(part)::value != 0>(value, ahead, from, stop, c, width - c,
                                                                              weights, shrink, output, stride);
        c += decltype(units)::value * per;
    };
    while (width - c >= most * per) take(Constant<most>{}, Constant<0>{});
    if constexpr (most > 4)
        if (width - c >= 4 * per) take(Constant<4>{}, Constant<0>{});
    if constexpr (most > 2)
        if (width - c >= 2 * per) take(Constant<2>{}, Constant<0>{});
    if constexpr (most > 1)
        if (width - c >= per) take(Constant<1>{}, Constant<0>{});
    if (c < width) take(Constant<1>{}, Constant<1>{});
}

// Cuts `count` rows into fours, twos and ones: body(first row, Constant).
template <class Number, class Body>
REGARD_INLINE void for_few(int64_t count, Body body) {
    constexpr int most = lanes<Number> < 4 ? lanes<Number> : 4;
    int64_t first = 0;
    for (; count - first >= most; first += most) body(first, Constant<most>{});
    if constexpr (most > 2)
        if (count - first >= 2) {
            body(first, Constant<2>{});
            first += 2;
        }
    if (count - first >= 1) body(first, Constant<1>{});
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Products of a few queries with the rows of one tile, read in place.
//
//     scores[r][j]  = query[r] . key[j]                       a dot product along the row
//     output[r]    += sum_j weights[r][j] value[j]
//
// Each unit of a row is loaded once for up to four queries. `rows` x `keys` dot products fill as many vectors as a
// vector has lanes, which are reduced over their lanes together, in log2(lanes) rounds. `At` gives the addresses of the
// rows of the tile: StridedRows or GatheredRows (decode_rows.h).
#pragma once

#include "decode/decode_rows.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/pack.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Adds the products of `units` units, from number k on, of `keys` keys with `rows` queries to sums[r * keys + j], which
// are not yet reduced over lanes. If `part`, only `count` numbers of the unit exist.
template <int rows, int keys, int units, bool part, class At, class T = typename At::storage>
REGARD_INLINE void multiply_units(const At& key, int64_t j0, int64_t k, int64_t count,
                                  const typename Unit<T>::factor* query, int64_t stride,
                                  vec<typename Unit<T>::number>* sums) {
    constexpr int unit_size = Unit<T>::unit_size;
    const T* at = key[j0];
#pragma GCC unroll 16
    for (int j = 0; j < keys; ++j) {
#pragma GCC unroll 8
        for (int u = 0; u < units; ++u) {
            const int64_t c = k + u * unit_size;
            key.fetch(at + c, j0 + j, c);
            auto x = part ? load_part(at + c, count) : load_unit(at + c);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r)
                sums[r * keys + j] = add_products<T>(x, query + r * stride + c, sums[r * keys + j]);
        }
        at = key.next(at, j0 + j);
    }
}

// Computes the scores of the keys from .. stop - 1, which are whole vectors. Rows of queries are `stride` factors
// apart, rows of scores `row` numbers.
template <int rows, class At, class T = typename At::storage, class Number>
REGARD_INLINE void score_rows(At key, int64_t from, int64_t stop, int64_t width,
                              const typename Unit<T>::factor* query, int64_t stride, Number* scores, int64_t row) {
    constexpr int n = lanes<Number>, keys = n / rows, unit_size = Unit<T>::unit_size;
    for (int64_t j0 = from; j0 < stop; j0 += keys) {
        vec<Number> sums[n] = {};
        int64_t k = 0;
        auto take = [&](auto units, auto part) {
            multiply_units<rows, keys, decltype(units)::value, decltype(part)::value != 0>(key, j0, k, width - k, query,
                                                                                           stride, sums);
            k += decltype(units)::value * unit_size;
        };
        // Rows are read one after the other, as memory is read fastest, if a row is no longer than what is taken at a time.
        constexpr int most = vector_bytes == 64 ? 4 : 8;
        while (width - k >= most * unit_size) take(Constant<most>{}, Constant<0>{});
        if constexpr (most > 4)
            if (width - k >= 4 * unit_size) take(Constant<4>{}, Constant<0>{});
        if (width - k >= 2 * unit_size) take(Constant<2>{}, Constant<0>{});
        if (width - k >= unit_size) take(Constant<1>{}, Constant<0>{});
        if (k < width) take(Constant<1>{}, Constant<1>{});
        Number together[n];
        store(together, sum_each_vector<Number>(sums));
        for (int r = 0; r < rows; ++r) memcpy(scores + r * row + j0, together + r * keys, sizeof(Number) * keys);
    }
}

inline constexpr int max_sums = vector_bytes == 64 ? 16 : 8;  // vectors of sums that fit the registers
// Units of the output whose sums of so many rows of weights fit.
template <int rows, class At>
inline constexpr int most_mixed_units = max_sums / rows / Unit<typename At::storage>::parts > 8
                                            ? 8
                                            : max_sums / rows / Unit<typename At::storage>::parts;

template <class At, bool in_columns>
constexpr bool in_shares() {
    if constexpr (in_columns) return At::is_prefetched_in_shares;
    return false;
}

// Adds weights . values to `units` units of the output from column c0 on. If `part`, only `count` numbers of the unit
// exist. Rows of weights are `row` numbers apart. If rows are read in several columns, each prefetches its share of the rows
// at `following`, in the order of memory.
template <int rows, int units, bool part, bool in_columns, class At, class Number>
REGARD_INLINE void mix_columns(At value, int64_t from, int64_t stop, int64_t c0, int64_t count, const Number* weights,
                               int64_t row, Number* output, int64_t stride, const void* following) {
    typedef typename At::storage T;
    constexpr int n = lanes<Number>, parts = Unit<T>::parts, unit_size = Unit<T>::unit_size, vectors = units * parts;
    constexpr int ways = rows * vectors * 2 <= max_sums ? 2 : 1;  // 2: separate sums of even and odd keys
    vec<Number> sums[ways][rows][vectors];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) {
            sums[0][r][v] = load(output + r * stride + c0 + v * n);
            sums[ways - 1][r][v] = ways == 1 ? sums[0][r][v] : vec<Number>{};
        }
    const T* at = value[from];
    const char* share = (const char*)following;
    constexpr bool shares = in_shares<At, in_columns>();
    if constexpr (shares) share += c0 * (stop - from) * (int64_t)sizeof(T);
    for (int64_t j0 = from; j0 < stop; j0 += ways)
#pragma GCC unroll 2
        for (int way = 0; way < ways; ++way) {
            int64_t j = j0 + way;
            vec<Number> x[vectors];
#pragma GCC unroll 8
            for (int u = 0; u < units; ++u) {
                const T* from_here = at + c0 + u * unit_size;
                if constexpr (shares)
                    __builtin_prefetch(share + u * unit_size * (int)sizeof(T), 0, 2);
                else if constexpr (rows > 1 || sizeof(T) <= 2)  // else it is slower
                    value.fetch(from_here, j, c0 + u * unit_size);
                Unit<T>::widen(part ? load_part(from_here, count) : load_unit(from_here), x + u * parts);
            }
            at = value.next(at, j);
            if constexpr (shares) share += units * unit_size * (int)sizeof(T);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
                vec<Number> w = broadcast(weights[r * row + j]);
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

template <int rows, bool in_columns, class At, class Number>
REGARD_INLINE void mix_block(At value, int64_t from, int64_t stop, int64_t width, const Number* weights, int64_t row,
                             Number* output, int64_t stride, const void* following) {
    constexpr int unit_size = Unit<typename At::storage>::unit_size, most = most_mixed_units<rows, At>;
    int64_t c = 0;
    auto take = [&](auto units, auto part) {
        mix_columns<rows, decltype(units)::value, decltype(part)::value != 0, in_columns>(
            value, from, stop, c, width - c, weights, row, output, stride, following);
        c += decltype(units)::value * unit_size;
    };
    while (width - c >= most * unit_size) take(Constant<most>{}, Constant<0>{});
    if constexpr (most > 4)
        if (width - c >= 4 * unit_size) take(Constant<4>{}, Constant<0>{});
    if constexpr (most > 2)
        if (width - c >= 2 * unit_size) take(Constant<2>{}, Constant<0>{});
    if constexpr (most > 1)
        if (width - c >= unit_size) take(Constant<1>{}, Constant<0>{});
    if (c < width) take(Constant<1>{}, Constant<1>{});
}

// With AVX2 the sums of 4 rows of weights are those of 16 numbers of the output, so rows of values are read in columns.
// A column of 64 rows comes from memory line by line, at half of its rate. So some rows are prefetched as they lie in
// memory, while those before them are read in columns from the first cache.
inline constexpr int64_t rows_of_columns = 32;

template <int rows, class At, class Number>
REGARD_INLINE void mix_rows(At value, int64_t from, int64_t stop, int64_t width, const Number* weights, int64_t row,
                            Number* output, int64_t stride) {
    constexpr int unit_size = Unit<typename At::storage>::unit_size;
    if constexpr (vector_bytes == 32 && At::in_tiles)
        if (width > most_mixed_units<rows, At> * unit_size) {
            for (int64_t next; from < stop; from = next) {
                next = min_of((from / rows_of_columns + 1) * rows_of_columns, stop);
                const void* following = nullptr;
                if constexpr (At::is_prefetched_in_shares) following = next < stop ? value[next] : value.next_tile;
                mix_block<rows, true>(value, from, next, width, weights, row, output, stride, following);
            }
            return;
        }
    mix_block<rows, false>(value, from, stop, width, weights, row, output, stride, nullptr);
}

// Splits `count` rows into groups of 4, 2 and 1: calls body(first row, Constant).
template <class Number, class Body>
REGARD_INLINE void for_row_groups(int64_t count, Body body) {
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

// Additive scores, without computing tanh for every pair.
//
//     s_ij = sum_w v_w tanh(a_iw + b_jw)                       Bahdanau et al. 2015, appendix A.1.2
//     tanh(a + b) = 1 - 2 e^-2a / (e^-2a + e^2b)
//
// a and b are the projected queries and keys. The exponentials are computed once per token; a pair then costs three
// additions and a division for each w. The sum is accumulated as s += v_w + c_iw / (d_iw + g_jw), with
//
//     decay d_iw = e^-2a_iw,    pull c_iw = -2 v_w d_iw,    growth g_jw = e^2b_jw
//
// so that its error is a few units in the last place of the largest partial sum.
//
// Numbers are clamped to +-`clamp` before the exponential, so that it cannot overflow. If only one of a and b is beyond
// +-`large`, the clamped sum is still at least clamp - large from 0, where tanh is +-1 to within its rounding, as for
// the unclamped sum. Tokens with a number beyond `large` are flagged; pairs of two such tokens are computed from the
// unclamped numbers.
#pragma once

#include "attention/backward.h"
#include "attention/forward.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class Number>
struct Range;
template <>
struct Range<float> {
    static constexpr float clamp = 40, large = 30;                                  // tanh(10) = 1 - 4e-9
    static constexpr float ln_2_high = 0.693359375f, ln_2_low = -2.1219444005e-4f;  // ln_2_high has 9 bits
};
template <>
struct Range<double> {
    static constexpr double clamp = 300, large = 280;  // tanh(20) = 1 - 8e-18
    static constexpr double ln_2_high = 0.6931471803691238, ln_2_low = 1.9082149292705877e-10;  // ln_2_high: 32 bits
};

// Rounds to the nearest integer, for |x| < 2^22.
REGARD_INLINE vfloat round_to_integer(vfloat x) { return (x + broadcast(12582912.0f)) - broadcast(12582912.0f); }
REGARD_INLINE vdouble round_to_integer(vdouble x) {
    return (x + broadcast(6755399441055744.0)) - broadcast(6755399441055744.0);
}

// e^x to a few units in the last place for |x| <= 2 clamp: x = n ln 2 + f, with ln 2 in two parts (Cody and Waite
// 1980). 2^(x log2 e) would have an error of about |x| units, from the rounding of x log2 e.
template <class A>
REGARD_INLINE vec<typename A::number> exponential(vec<typename A::number> x) {
    typedef typename A::number number;
    vec<number> n = round_to_integer(x * broadcast((number)log2_e));
    vec<number> f = (x - n * broadcast(Range<number>::ln_2_high)) - n * broadcast(Range<number>::ln_2_low);
    return exp2<A::degree>(f * broadcast((number)log2_e)) * exp2<A::degree>(n);  // 2^n is exact
}

// Replaces each number x of a row by e^(times x), with x clamped. Returns whether a number is beyond `large`.
template <class A>
REGARD_INLINE bool to_exponentials(typename A::number* row, int64_t stride, typename A::number times) {
    typedef typename A::number number;
    vec<number> clamp = broadcast(Range<number>::clamp), large = broadcast(Range<number>::large);
    uint32_t beyond = 0;
    for (int64_t k = 0; k < stride; k += lanes<number>) {
        vec<number> x = load(row + k);
        beyond |= compare_greater(maximum(x, -x), large);
        x = -maximum(-clamp, -maximum(-clamp, x));
        store(row + k, exponential<A>(x * broadcast(times)));
    }
    return beyond != 0;
}

// a / b, where 1 / b must be a normal number; in float to about two units in the last place.
REGARD_INLINE vdouble quotient(vdouble a, vdouble b) { return a / b; }
REGARD_INLINE vfloat quotient(vfloat a, vfloat b) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    vfloat inverse = _mm512_rcp14_ps(b);
#else
    vfloat inverse = _mm256_rcp_ps(b);
#endif
    vfloat first = a * inverse;  // one Newton step doubles the correct digits
    return multiply_add(first, multiply_add(-b, inverse, broadcast(1.0f)), first);
#else
    return a / b;
#endif
}

// Computes tanh x and a quarter of its derivative.
template <class A, class V>
REGARD_INLINE void tanh_and_slope(V x, V* tanh, V* slope) {
    typedef typename A::number number;
    V e = exp2<A::degree>(maximum(x, -x) * broadcast((number)(-2 * log2_e)));
    V inverse = 1 / (1 + e), size = (1 - e) * inverse;
    *tanh = select(compare_greater(V{}, x), -size, size);
    *slope = e * inverse * inverse;
}

// The score vector of one head.
template <class A>
struct ScoreVector {
    typedef typename A::number number;

    number* values;         // all 0 if one of them is NaN or Inf
    number* scaled_values;  // values / unit: the largest is in [1, 2), so that c_iw does not overflow or underflow; all
                            // NaN if a value is NaN or Inf, so that every row with an allowed key becomes NaN
    number unit;            // a power of two: a score is `unit` times the sum over `scaled_values`

    void carve(ScratchLayout& c, const Problem& p) {
        values = c.take<number>(padded_width<A>(p.head_dim));
        scaled_values = c.take<number>(padded_width<A>(p.head_dim));
    }

    void read(const Problem& p, int64_t head) {
        int64_t stride = padded_width<A>(p.head_dim);
        bool nonfinite = read_row(p.vector, p.vector.at(0, 0, head, 0), p.head_dim, values, stride);
        vec<number> sizes = {};
        for (int64_t k = 0; k < stride; k += lanes<number>) {
            vec<number> x = load(values + k);
            sizes = maximum(sizes, maximum(x, -x));
        }
        number largest = 0;
        for (int i = 0; i < lanes<number>; ++i) largest = sizes[i] > largest ? sizes[i] : largest;
        int exponent = 0;
        if (!nonfinite && largest > 0) exponent = ilogb(largest);
        unit = (number)ldexp(1.0, exponent);
        if (nonfinite) {
            for (int64_t k = 0; k < stride; ++k) values[k] = 0, scaled_values[k] = (number)NAN;
        } else if (exponent > -100 && exponent < 100) {  // 2^-exponent is a normal number
            vec<number> power = broadcast((number)ldexp(1.0, -exponent));
            for (int64_t k = 0; k < stride; k += lanes<number>) store(scaled_values + k, load(values + k) * power);
        } else {
            for (int64_t k = 0; k < stride; ++k) scaled_values[k] = (number)ldexp((double)values[k], -exponent);
        }
    }
};

// The score of one pair of tokens, from the unclamped numbers.
template <class A>
struct ExactPair {
    typedef typename A::number number;
    number *of_query, *of_key;

    void carve(ScratchLayout& c, const Problem& p) {
        of_query = c.take<number>(padded_width<A>(p.head_dim));
        of_key = c.take<number>(padded_width<A>(p.head_dim));
    }
    void read(const Problem& p, int64_t batch, int64_t head, int64_t query, int64_t key) {
        int64_t stride = padded_width<A>(p.head_dim);
        read_row(p.query, p.query.at(batch, head, query, 0), p.head_dim, of_query, stride);
        read_row(p.key, p.key.at(batch, head / p.group(), key, 0), p.head_dim, of_key, stride);
    }
    // Calls body(k, tanh, a quarter of its derivative) for each vector of w, which starts at k.
    template <class Body>
    REGARD_INLINE void for_each(const Problem& p, Body body) const {
        for (int64_t k = 0; k < p.head_dim; k += lanes<number>) {
            vec<number> tanh, slope;
            tanh_and_slope<A>(load(of_query + k) + load(of_key + k), &tanh, &slope);
            body(k, tanh, slope);
        }
    }
    number score(const Problem& p, const number* vector) const {
        vec<number> sum = {};
        for_each(p, [&](int64_t k, vec<number> tanh, vec<number>) { sum = multiply_add(load(vector + k), tanh, sum); });
        return sum_lanes<number>(sum);
    }
};

// A register tile has `rows_per_group` queries, or one, and half as many vectors of keys as a panel of the GEMM
// microkernel, since each query also needs its decay and pull in registers. Larger tiles were not faster, and every
// size is compiled separately.
inline constexpr int rows_per_group = 4;
inline constexpr int score_vectors = panel_vectors / 2;

// Splits `rows` rows into groups of rows_per_group and single rows: calls body(first row, Constant).
template <class Body>
REGARD_INLINE void for_rows(int64_t rows, Body body) {
    int64_t first = 0;
    for (; rows - first >= rows_per_group; first += rows_per_group) body(first, Constant<rows_per_group>{});
    for (; first < rows; ++first) body(first, Constant<1>{});
}

// Splits the vectors first .. stop - 1 into panels: calls body(first vector, Constant).
template <class Body>
REGARD_INLINE void for_score_panels(int64_t first, int64_t stop, Body body) {
    for (; stop - first >= score_vectors; first += score_vectors) body(first, Constant<score_vectors>{});
    if constexpr (score_vectors > 1)
        if (stop - first == 1) body(first, Constant<1>{});
}

// The operands of the scores of one strip of queries and one tile of keys.
template <class A>
struct Scores {
    typedef typename A::number number;
    static constexpr int width = lanes<number>;
    const Problem& p;
    const ScoreVector<A>& vector;
    ExactPair<A>& pair;
    number* exact;                        // rows_per_group x 64: the scores of pairs of two large tokens
    const number *decay, *pull, *growth;  // decay and pull from the strip's first query on; growth of the tile's keys
    int64_t batch, head, first_query, first_key;
    uint64_t large_queries, large_keys;  // bit r: query r of the strip; bit j: key j of the tile

    template <int n>
    REGARD_INLINE void prepare() {
        if (!large_keys || !(large_queries & bit_range(0, n))) return;
        for (int r = 0; r < n; ++r) {
            if (!(large_queries >> r & 1)) continue;
            for (uint64_t rest = large_keys; rest; rest &= rest - 1) {
                int64_t j = __builtin_ctzll(rest);
                pair.read(p, batch, head, first_query + r, first_key + j);
                exact[r * tile + j] = pair.score(p, vector.scaled_values);
            }
        }
    }

    // Computes the sums over w for the keys from vector v0 on. A score is vector.unit times its sum.
    template <int n, int vectors>
    REGARD_INLINE void sum(int64_t v0, Sums<A, n, vectors>& s) const {
        int64_t stride = padded_width<A>(p.head_dim);
        s.clear();
        const number* right = growth + v0 * width;
        for (int64_t w = 0; w < p.head_dim; ++w, right += tile) {
            vec<number> g[vectors], v = broadcast(vector.scaled_values[w]);
#pragma GCC unroll 8
            for (int c = 0; c < vectors; ++c) g[c] = load(right + c * width);
#pragma GCC unroll 8
            for (int r = 0; r < n; ++r) {
                vec<number> d = broadcast(decay[r * stride + w]), pulled = broadcast(pull[r * stride + w]);
#pragma GCC unroll 8
                for (int c = 0; c < vectors; ++c)
                    s.at[r][c] = (s.at[r][c] + v) + quotient(pulled, d + g[c]);
            }
        }
        if (!large_keys) return;
        s.each([&](int r, int c, vec<number>& sum) {
            int64_t at = (v0 + c) * width;
            if (large_queries >> r & 1) sum = select((uint32_t)(large_keys >> at), load(exact + r * tile + at), sum);
        });
    }
};

// Packing of tokens. A packed tile of keys has growth (padded inner size x 64) and a word whose bit j is set if key j
// is large. A packed tile of queries has decay and pull (64 x padded inner size each) and such a word.
template <class A>
struct PackAdditive {
    typedef typename A::number number;
    typedef PackKeys<A> Pack;

    static int64_t stride(const Problem& p) { return padded_width<A>(p.head_dim); }
    static size_t key_bytes(const Problem& p) { return sizeof(number) * (size_t)(stride(p) * tile) + 64; }
    static size_t query_bytes(const Problem& p) { return 2 * sizeof(number) * (size_t)(stride(p) * tile) + 64; }
    static REGARD_INLINE uint64_t* large_keys(const Problem& p, char* key) {
        return (uint64_t*)(key + key_bytes(p) - 64);
    }
    static REGARD_INLINE uint64_t* large_queries(const Problem& p, char* query) {
        return (uint64_t*)(query + query_bytes(p) - 64);
    }
    static size_t scratch(const Problem& p) {
        return sizeof(number) * (size_t)(tile * (stride(p) + padded_width<A>(p.value_dim)));
    }

    // Reads the keys and values of a tile into rows in scratch, and packs the keys. Tokens with NaN or Inf become
    // zeros, with their bit set in `bad`.
    struct Rows {
        int64_t height;
        number *keys, *values;
        uint64_t bad;

        Rows(const Problem& p, int64_t batch, int64_t key_head, int64_t key_tile, char* key, char* scratch) {
            int64_t first = key_tile * tile, count = p.keys_in(key_tile);
            int64_t key_stride = stride(p), value_stride = padded_width<A>(p.value_dim);
            height = min_of(padded_width<A>(count), tile);
            keys = (number*)scratch, values = keys + tile * key_stride;
            bad = read_rows(p.key, p.key.at(batch, key_head, first, 0), count, height, p.head_dim, keys, key_stride);
            bad |= read_rows(p.value, p.value.at(batch, key_head, first, 0), count, height, p.value_dim, values,
                             value_stride);
            if (bad) {
                clear_rows(bad, p.head_dim, keys, key_stride);
                clear_rows(bad, p.value_dim, values, value_stride);
            }
            uint64_t large = 0;
            for (int64_t j = 0; j < height; ++j)
                large |= (uint64_t)to_exponentials<A>(keys + j * key_stride, key_stride, 2) << j;
            *large_keys(p, key) = large;
            transpose(keys, key_stride, height, key_stride, (number*)key);
        }
    };

    static void pack(const Problem& p, int64_t batch, int64_t key_head, int64_t key_tile, char* key, char* value,
                     uint64_t* bad, char* scratch) {
        Rows rows(p, batch, key_head, key_tile, key, scratch);
        *bad = rows.bad;
        Pack::write_rows(rows.values, padded_width<A>(p.value_dim), rows.height, padded_width<A>(p.value_dim),
                         (number*)value);
    }

    // Computes decay and pull of one query, whose numbers are in `decay` before. Returns whether the query is large.
    static REGARD_INLINE bool pack_query(const Problem& p, const number* vector, number* decay, number* pull) {
        bool large = to_exponentials<A>(decay, stride(p), -2);
        for (int64_t k = 0; k < stride(p); k += lanes<number>)
            store(pull + k, load(decay + k) * load(vector + k) * broadcast((number)-2));
        return large;
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

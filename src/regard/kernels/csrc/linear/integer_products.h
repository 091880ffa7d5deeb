// Products of integers of 8 bits, and the rounding of tokens to them:
//
//     t_g = max_{k in g} |x_k| / 127,   q_k = round(x_k / t_g)          x (inputs) -> q (inputs), t (groups)
//     sum_{k in g} x_k u_k ~ t_g sum_{k in g} q_k u_k
//
// A *group* is of adjacent inputs, so that one large number rounds none but its neighbours. Sums of products are exact
// in 32 bits. A product of 32 bits is four products of bytes:
//
//     VNNI       one instruction, of unsigned and signed bytes. So 128 is added to signed weights, and 128 sum_k q_k
//                taken from the sum.
//     AVX-512, AVX2     the sign of the weight goes to the token: |w| times it, in pairs, exact since both are at most 127
//     others     bytes as 16 bits
#pragma once

#include "linear/projection_kernels.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

typedef vec<int32_t> vint;

struct IntegerProducts {
#if defined(__AVX512VNNI__)
    static constexpr int offset = 128;  // of signed weights as operands
    typedef vbits weights;
    static REGARD_INLINE weights from_signed(vbits w) { return w ^ 0x80808080u; }
    static REGARD_INLINE weights from_unsigned(vbits w) { return w; }
    // Adds the products of the bytes of each lane.
    static REGARD_INLINE vint add(vint sum, weights w, vbits q) {
        return (vint)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)q);
    }
#elif defined(__AVX512F__)
    static constexpr int offset = 0;
    struct weights {
        __m512i size;
        __mmask64 negative;
    };
    static REGARD_INLINE weights from_signed(vbits w) {
        return {_mm512_abs_epi8((__m512i)w), _mm512_movepi8_mask((__m512i)w)};
    }
    static REGARD_INLINE weights from_unsigned(vbits w) { return {(__m512i)w, 0}; }
    static REGARD_INLINE vint add(vint sum, weights w, vbits q) {
        const __m512i with_sign = _mm512_mask_sub_epi8((__m512i)q, w.negative, _mm512_setzero_si512(), (__m512i)q);
        return sum + (vint)_mm512_madd_epi16(_mm512_maddubs_epi16(w.size, with_sign), _mm512_set1_epi16(1));
    }
#elif defined(__AVX2__)
    static constexpr int offset = 0;
    struct weights {
        __m256i size, sign;
    };
    static REGARD_INLINE weights from_signed(vbits w) { return {_mm256_abs_epi8((__m256i)w), (__m256i)w}; }
    static REGARD_INLINE weights from_unsigned(vbits w) { return {(__m256i)w, (__m256i)w}; }
    static REGARD_INLINE vint add(vint sum, weights w, vbits q) {
        const __m256i with_sign = _mm256_sign_epi8((__m256i)q, w.sign);
        return sum + (vint)_mm256_madd_epi16(_mm256_maddubs_epi16(w.size, with_sign), _mm256_set1_epi16(1));
    }
#else
    static constexpr int offset = 0;
    typedef vec<int16_t> vshort;
    struct weights {
        vshort even, odd;
    };
    static REGARD_INLINE weights from_signed(vbits w) { return {(vshort)w << 8 >> 8, (vshort)w >> 8}; }
    static REGARD_INLINE weights from_unsigned(vbits w) { return from_signed(w); }
    static REGARD_INLINE vint add_pairs(vint sum, vshort a, vshort b) {
#if defined(__SSE2__)
        return sum + (vint)__builtin_ia32_pmaddwd128(a, b);
#else
        const vshort products = a * b;  // at most 127^2, and the sums of two below 2^15
        return sum + ((vint)products << 16 >> 16) + ((vint)products >> 16);
#endif
    }
    static REGARD_INLINE vint add(vint sum, weights w, vbits q) {
        const weights of_q = from_signed(q);
        return add_pairs(add_pairs(sum, w.even, of_q.even), w.odd, of_q.odd);
    }
#endif
};

REGARD_INLINE void keep_in_register(vbits& v) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(v));
#else
    (void)v;
#endif
}

// Sums of integers start at the bits of 1.5 * 2^23, and are then the low bits of that number plus the sum: a subtraction
// takes a fraction of the time of a conversion. The sum of a group is at most 64 * 255 * 127 < 2^22.
constexpr float start_of_sums = 12582912;
constexpr int32_t start_bits = 0x4b400000;
REGARD_INLINE vint make_sum() { return broadcast(start_bits); }
REGARD_INLINE vfloat to_float(vint sum) { return (vfloat)sum - broadcast(start_of_sums); }

constexpr int64_t group = integer_group;  // inputs

REGARD_INLINE int32_t largest_lane(vint v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)v);
#else
    return max_lane<int32_t>(v);
#endif
}
REGARD_INLINE int32_t add_lanes(vint v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    return sum_lanes<int32_t>(v);
#endif
}

typedef int8_t signed_bytes __attribute__((vector_size(vector_bytes / 4)));  // as many lanes as vint

struct RoundedGroup {
    float factor;
    int32_t sum;  // of the bytes
};

alignas(64) static constexpr float zeros[integer_group] = {};

// Rounds a group of numbers to bytes. One with NaN or Inf has the factor NaN and zeros; one whose numbers are all below
// 2^-100 is a group of zeros.
template <class T>
static REGARD_INLINE RoundedGroup round_to_bytes(const T* from, int8_t* to) {
    constexpr int n = lanes<float>;
    vint largest = {}, sum = {};
#pragma GCC unroll 4
    for (int64_t k = 0; k < group; k += n) {
        const vint size = (vint)((vbits)load_wide(from + k) & 0x7fffffffu);  // ordered as the numbers are, NaN above all
        largest = size > largest ? size : largest;
    }
    const int32_t bits = largest_lane(largest);
    float most;
    memcpy(&most, &bits, sizeof most);
    const bool is_finite = bits < 0x7f800000, is_rounded = is_finite && most >= 0x1p-100f;
    if (!is_rounded) from = (const T*)zeros, most = is_finite ? 0 : __builtin_nanf("");
    const vfloat factor = broadcast(is_rounded ? 127 / most : 0.0f), start = broadcast(start_of_sums);
#pragma GCC unroll 4
    for (int64_t k = 0; k < group; k += n) {
        // The rounded number is in the low bits of the sum.
        const vint rounded = (vint)multiply_add(load_wide(from + k), factor, start) - (vint)start;
        const signed_bytes narrow = __builtin_convertvector(rounded, signed_bytes);
        memcpy(to + k, &narrow, sizeof narrow);
        sum += rounded;
    }
    return {most / 127, add_lanes(sum)};
}

// Calls body(group, RoundedGroup) for all groups of a token, whose bytes are written to `to`: whole groups, with zeros at
// the end of the last one.
template <class T, class Body>
static REGARD_INLINE void round_token(const T* from, int64_t inputs, int8_t* to, Body body) {
    int64_t g = 0;
    for (; (g + 1) * group <= inputs; ++g) body(g, round_to_bytes(from + g * group, to + g * group));
    if (g * group == inputs) return;
    T last[group] = {};
    memcpy((void*)last, from + g * group, sizeof(T) * (size_t)(inputs - g * group));
    body(g, round_to_bytes(last, to + g * group));
}

// Formats of stored weights. load: as many weights as a vector has bytes, from number k of a row on, as bytes.
struct Int8Weights {
    static constexpr bool has_minimum = false;  // W_ok = s_og w_ok, with w of -127 .. 127
    static constexpr int offset = IntegerProducts::offset;
    static REGARD_INLINE constexpr int64_t row_bytes(int64_t inputs) { return inputs; }
    static constexpr int groups_side_by_side = 1;
    static REGARD_INLINE vbits load(const uint8_t* row, int64_t k) {
        return REGARD_ISA_NAMESPACE::load((const uint32_t*)(row + k));
    }
    // The last weights of a row of `inputs` weights, with zeros behind them.
    static REGARD_INLINE vbits load_last(const uint8_t* row, int64_t k, int64_t inputs) {
        vbits last = {};
        memcpy(&last, row + k, (size_t)(inputs - k));
        return last;
    }
    static REGARD_INLINE IntegerProducts::weights operand(vbits w) { return IntegerProducts::from_signed(w); }
    static REGARD_INLINE vbits unit(vbits w) { return offset ? w ^ 0x80808080u : w; }
};

// Two in a byte: number j of a group, and number j of the next one. The last two groups are filled up.
struct Int4Weights {
    static constexpr int64_t pair = 2 * group;
    static constexpr bool has_minimum = true;  // W_ok = s_og w_ok + m_og, with w of 0 .. 15
    static constexpr int offset = 0;
    static REGARD_INLINE constexpr int64_t row_bytes(int64_t inputs) { return (inputs + pair - 1) / pair * group; }
    static constexpr int groups_side_by_side = 2;
    static REGARD_INLINE vbits load(const uint8_t* row, int64_t k) {
        const vbits both = REGARD_ISA_NAMESPACE::load((const uint32_t*)(row + k / pair * group + k % group));
        return (k % pair < group ? both : both >> 4) & 0x0f0f0f0fu;
    }
    static REGARD_INLINE vbits load_last(const uint8_t* row, int64_t k, int64_t) { return load(row, k); }
    static REGARD_INLINE IntegerProducts::weights operand(vbits w) { return IntegerProducts::from_unsigned(w); }
    static REGARD_INLINE vbits unit(vbits w) { return w; }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

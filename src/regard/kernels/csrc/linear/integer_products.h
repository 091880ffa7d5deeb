// Products of integers of 8 bits, and the rounding of tokens to them:
//
//     t_g = max_{k in g} |x_k| / 127,   q_k = round(x_k / t_g)          x (inputs) -> q (inputs), t (groups)
//     sum_{k in g} x_k u_k ~ t_g sum_{k in g} q_k u_k
//
// A *group* is of adjacent inputs, so that one large number rounds none but its neighbours. A *unit* is four adjacent
// inputs, as the bytes of 32 bits. A lane of a vector has a unit of an output, and the units of a token are broadcast.
// Sums of products are exact:
//
//     VNNI     one instruction, of unsigned and signed bytes. So 128 is added to signed weights, and 128 sum_k q_k
//              taken from the sum.
//     AVX-512  pairs of unsigned and signed bytes: |w| with the sign of w at q. AVX2: |q| with the sign of q at w, as
//              there is an instruction for it, and |q| is stored. Both are at most 127, so 16 bits hold a pair of
//              products. For int4 weights, 0 .. 15, they hold eight pairs, which are added before they are widened.
//     Arm      one instruction, of signed bytes (FEAT_DotProd)
//     others   bytes as 16 bits
#pragma once

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#include "linear/projection_kernels.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

typedef vec<int32_t> vint;

constexpr int64_t group = integer_group;  // inputs
constexpr int unit_inputs = 4, group_units = group / unit_inputs;

// A group of a rounded token.
struct TokenGroup {
    int8_t numbers[group];  // q
#if defined(__AVX2__) && !defined(__AVX512F__)
    uint8_t sizes[group];  // |q|
#endif
    int32_t sum;   // of the numbers
    float factor;  // t_g
};

template <class Number>
static REGARD_INLINE vbits broadcast_unit(const Number* bytes, int unit) {
    uint32_t bits;
    memcpy(&bits, bytes + unit * unit_inputs, sizeof bits);
    vbits all = broadcast(bits);
#if defined(__AVX512F__)
    __asm__("" : "+v"(all));  // a load for each product would take as long as the product
#endif
    return all;
}

// Products with weights of -127 .. 127, and with weights of 0 .. 15. Each has
//
//     Weights       a vector of units of weights, as an operand: from `read`
//     Unit          a unit of a token, as an operand, in each lane: from `take`
//     Partial       sums of `units` units at most: what `add` adds to, and `widen` makes int32
//     offset        what was added to the weights
#if defined(__AVX512VNNI__)
template <int added>
struct UnsignedProducts {
    typedef vbits Weights, Unit;
    typedef vint Partial;
    static constexpr int offset = added, units = group_units;
    static REGARD_INLINE Weights read(vbits w) { return added == 0 ? w : w ^ 0x80808080u; }
    static REGARD_INLINE Unit take(const TokenGroup& token, int unit) { return broadcast_unit(token.numbers, unit); }
    static REGARD_INLINE Partial add(Partial sum, Weights w, Unit q) {
        return (vint)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)q);
    }
    static REGARD_INLINE vint widen(Partial sum) { return sum; }
};
typedef UnsignedProducts<128> Int8Products;
typedef UnsignedProducts<0> Int4Products;
#elif defined(__AVX2__)
#if defined(__AVX512F__)
static REGARD_INLINE vbits multiply_pairs(vbits a, vbits b) {
    return (vbits)_mm512_maddubs_epi16((__m512i)a, (__m512i)b);
}
static REGARD_INLINE vint add_pairs(vbits pairs) {
    return (vint)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1));
}
#else
static REGARD_INLINE vbits multiply_pairs(vbits a, vbits b) {
    return (vbits)_mm256_maddubs_epi16((__m256i)a, (__m256i)b);
}
static REGARD_INLINE vint add_pairs(vbits pairs) {
    return (vint)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1));
}
#endif

struct Int8Products {
    typedef vint Partial;
    static constexpr int offset = 0, units = group_units;
#if defined(__AVX512F__)
    struct Weights {
        vbits sizes;
        __mmask64 negative;
    };
    typedef vbits Unit;
    static REGARD_INLINE Weights read(vbits w) {
        return {(vbits)_mm512_abs_epi8((__m512i)w), _mm512_movepi8_mask((__m512i)w)};
    }
    static REGARD_INLINE Unit take(const TokenGroup& token, int unit) { return broadcast_unit(token.numbers, unit); }
    static REGARD_INLINE Partial add(Partial sum, Weights w, Unit q) {
        const __m512i with_sign = _mm512_mask_sub_epi8((__m512i)q, w.negative, _mm512_setzero_si512(), (__m512i)q);
        return sum + add_pairs(multiply_pairs(w.sizes, (vbits)with_sign));
    }
#else
    typedef vbits Weights;
    struct Unit {
        vbits numbers, sizes;
    };
    static REGARD_INLINE Weights read(vbits w) { return w; }
    static REGARD_INLINE Unit take(const TokenGroup& token, int unit) {
        return {broadcast_unit(token.numbers, unit), broadcast_unit(token.sizes, unit)};
    }
    static REGARD_INLINE Partial add(Partial sum, Weights w, Unit q) {
        const vbits with_sign = (vbits)_mm256_sign_epi8((__m256i)w, (__m256i)q.numbers);
        return sum + add_pairs(multiply_pairs(q.sizes, with_sign));
    }
#endif
    static REGARD_INLINE vint widen(Partial sum) { return sum; }
};

struct Int4Products {
    typedef vbits Weights, Unit;
    typedef vec<int16_t> Partial;
    static constexpr int offset = 0, units = 8;  // 8 x 2 x 15 x 127 < 2^15
    static REGARD_INLINE Weights read(vbits w) { return w; }
    static REGARD_INLINE Unit take(const TokenGroup& token, int unit) { return broadcast_unit(token.numbers, unit); }
    static REGARD_INLINE Partial add(Partial sum, Weights w, Unit q) { return sum + (Partial)multiply_pairs(w, q); }
    static REGARD_INLINE vint widen(Partial sum) { return add_pairs((vbits)sum); }
};
#elif defined(__ARM_FEATURE_DOTPROD)
struct Int8Products {
    typedef vbits Weights, Unit;
    typedef vint Partial;
    static constexpr int offset = 0, units = group_units;
    static REGARD_INLINE Weights read(vbits w) { return w; }
    static REGARD_INLINE Unit take(const TokenGroup& token, int unit) { return broadcast_unit(token.numbers, unit); }
    static REGARD_INLINE Partial add(Partial sum, Weights w, Unit q) {
        return (vint)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)q);
    }
    static REGARD_INLINE vint widen(Partial sum) { return sum; }
};
typedef Int8Products Int4Products;
#else
struct Int8Products {
    typedef vec<int16_t> vshort;
    struct Weights {
        vshort even, odd;
    };
    typedef Weights Unit;
    typedef vint Partial;
    static constexpr int offset = 0, units = group_units;
    static REGARD_INLINE Weights read(vbits w) { return {(vshort)w << 8 >> 8, (vshort)w >> 8}; }
    static REGARD_INLINE Unit take(const TokenGroup& token, int unit) { return read(broadcast_unit(token.numbers, unit)); }
    static REGARD_INLINE vint add_pairs(vint sum, vshort a, vshort b) {
#if defined(__SSE2__)
        return sum + (vint)__builtin_ia32_pmaddwd128(a, b);
#else
        const vshort products = a * b;  // at most 127^2, and the sums of two below 2^15
        return sum + ((vint)products << 16 >> 16) + ((vint)products >> 16);
#endif
    }
    static REGARD_INLINE Partial add(Partial sum, Weights w, Unit q) {
        return add_pairs(add_pairs(sum, w.even, q.even), w.odd, q.odd);
    }
    static REGARD_INLINE vint widen(Partial sum) { return sum; }
};
typedef Int8Products Int4Products;
#endif

// The sum of a group, at most 64 * 255 * 127 < 2^21, is added to the bits of 1.5 * 2^23, and is then the low bits of that
// number plus the sum: a subtraction takes a fraction of the time of a conversion.
constexpr float start_of_sums = 12582912;
constexpr int32_t start_bits = 0x4b400000;
static REGARD_INLINE vfloat to_float(vint sum) { return (vfloat)sum - broadcast(start_of_sums); }

#if defined(__AVX512F__)
static REGARD_INLINE int32_t largest_lane(vint v) { return _mm512_reduce_max_epi32((__m512i)v); }
static REGARD_INLINE int32_t add_lanes(vint v) { return _mm512_reduce_add_epi32((__m512i)v); }
#elif defined(__AVX2__)
static REGARD_INLINE int32_t largest_lane(vint v) {
    const __m128i a = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    const __m128i b = _mm_max_epi32(a, _mm_unpackhi_epi64(a, a));
    return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 1)));
}
static REGARD_INLINE int32_t add_lanes(vint v) {
    const __m128i a = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    const __m128i b = _mm_add_epi32(a, _mm_unpackhi_epi64(a, a));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 1)));
}
#else
static REGARD_INLINE int32_t largest_lane(vint v) { return max_lane<int32_t>(v); }
static REGARD_INLINE int32_t add_lanes(vint v) { return sum_lanes<int32_t>(v); }
#endif

// Stores the numbers of four vectors, -127 .. 127, as bytes.
static REGARD_INLINE void store_bytes(const vint* numbers, int8_t* to) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    // Instructions pack the halves of vectors, each for itself: the order of groups of four numbers is 0 4 1 5 2 6 3 7.
    const auto* from = (const __m256i*)numbers;
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(from[0], from[1]), _mm256_packs_epi32(from[2], from[3]));
    _mm256_storeu_si256((__m256i*)to, _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
#else
    typedef int8_t bytes __attribute__((vector_size(vector_bytes / 4)));  // as many lanes as vint
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const bytes narrow = __builtin_convertvector(numbers[i], bytes);
        memcpy(to + i * lanes<int32_t>, &narrow, sizeof narrow);
    }
#endif
}

alignas(64) static constexpr float zeros[integer_group] = {};

// Rounds a group of numbers to bytes. One with NaN or Inf has the factor NaN and zeros; one whose numbers are all below
// 2^-100 is a group of zeros.
template <class T>
static REGARD_INLINE void round_to_bytes(const T* from, TokenGroup& to) {
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
    for (int64_t k = 0; k < group; k += 4 * n) {
        vint rounded[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            // The rounded number is in the low bits of the sum.
            rounded[i] = (vint)multiply_add(load_wide(from + k + i * n), factor, start) - (vint)start;
            sum += rounded[i];
        }
        store_bytes(rounded, to.numbers + k);
    }
#if defined(__AVX2__) && !defined(__AVX512F__)
    for (int64_t k = 0; k < group; k += vector_bytes)
        store((uint32_t*)(to.sizes + k), (vbits)_mm256_abs_epi8((__m256i)load((const uint32_t*)(to.numbers + k))));
#endif
    to.sum = add_lanes(sum);
    to.factor = most / 127;
}

// Rounds all groups of a token, the last one with zeros at its end.
template <class T>
static REGARD_INLINE void round_token(const T* from, int64_t inputs, TokenGroup* to) {
    for (; inputs >= group; inputs -= group, from += group) round_to_bytes(from, *to++);
    if (inputs == 0) return;
    T last[group] = {};
    memcpy((void*)last, from, sizeof(T) * (size_t)inputs);
    round_to_bytes(last, *to);
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

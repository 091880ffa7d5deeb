// Vectors of one instruction set. The kernels are written once, against this file; it is compiled once for each
// instruction set, in a namespace of its own.
//
//     vec<T>            as many T as a register holds: 64 bytes with AVX-512, 32 with AVX2, else 16
//     lanes<T>          the number of elements of vec<T>
//
// GNU vector extensions provide the plain arithmetic; intrinsics are used if a specific instruction matters.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "tiles/problem.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
inline constexpr int panel_vectors = 4;  // columns of a register tile, in vectors: 6 x 4 accumulators of 32 registers
#elif defined(__AVX2__)
inline constexpr int vector_bytes = 32;
inline constexpr int panel_vectors = 2;  // 6 x 2 accumulators of 16 registers
#elif defined(__aarch64__)
inline constexpr int vector_bytes = 16;
inline constexpr int panel_vectors = 4;
#else
inline constexpr int vector_bytes = 16;
inline constexpr int panel_vectors = 2;
#endif

struct bfloat16 {
    uint16_t bits;
};
struct float16 {
    uint16_t bits;
};

template <class T>
struct vector_of {
    typedef T type __attribute__((vector_size(vector_bytes)));
};
// There are no vectors of these types, so that templates over vec<T> do not match them.
template <>
struct vector_of<bfloat16> {};
template <>
struct vector_of<float16> {};
template <class T>
using vec = typename vector_of<T>::type;
template <class T>
inline constexpr int lanes = vector_bytes / (int)sizeof(T);

typedef vec<float> vfloat;
typedef vec<double> vdouble;
typedef vec<uint32_t> vbits;
typedef vec<uint64_t> vlong;
typedef uint16_t halves __attribute__((vector_size(vector_bytes / 2)));  // as many lanes as vbits

// ---- memory: never assumes alignment ----

template <class T>
REGARD_INLINE vec<T> load(const T* from) {
    vec<T> v;
    memcpy(&v, from, sizeof v);
    return v;
}
template <class T>
REGARD_INLINE void store(T* to, vec<T> v) {
    memcpy(to, &v, sizeof v);
}
template <class T>
REGARD_INLINE vec<T> broadcast(T x) {
    return x - vec<T>{};  // exact, also for -0 and NaN; compilers emit one broadcast
}

// ---- order of lanes ----

// Lane i of the result is lane index[i] of the concatenation of a and b.
template <int... index, class V>
REGARD_INLINE V shuffle(V a, V b) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, index...);
#else
    typedef decltype(a == b) Indices;  // integers as wide as the lanes
    return __builtin_shuffle(a, b, Indices{index...});
#endif
}

// ---- arithmetic ----

#if defined(__AVX512F__)
REGARD_INLINE vfloat multiply_add(vfloat a, vfloat b, vfloat c) { return _mm512_fmadd_ps(a, b, c); }
REGARD_INLINE vdouble multiply_add(vdouble a, vdouble b, vdouble c) { return _mm512_fmadd_pd(a, b, c); }
#elif defined(__AVX2__)
REGARD_INLINE vfloat multiply_add(vfloat a, vfloat b, vfloat c) { return _mm256_fmadd_ps(a, b, c); }
REGARD_INLINE vdouble multiply_add(vdouble a, vdouble b, vdouble c) { return _mm256_fmadd_pd(a, b, c); }
#else
REGARD_INLINE vfloat multiply_add(vfloat a, vfloat b, vfloat c) { return a * b + c; }
REGARD_INLINE vdouble multiply_add(vdouble a, vdouble b, vdouble c) { return a * b + c; }
#endif

// The larger one; b if either is NaN, so that `maximum(bound, x)` propagates a NaN in x.
#if defined(__AVX512F__)
REGARD_INLINE vfloat maximum(vfloat a, vfloat b) { return _mm512_max_ps(a, b); }
REGARD_INLINE vdouble maximum(vdouble a, vdouble b) { return _mm512_max_pd(a, b); }
#elif defined(__AVX2__)
REGARD_INLINE vfloat maximum(vfloat a, vfloat b) { return _mm256_max_ps(a, b); }
REGARD_INLINE vdouble maximum(vdouble a, vdouble b) { return _mm256_max_pd(a, b); }
#else
REGARD_INLINE vfloat maximum(vfloat a, vfloat b) {
    vbits larger = (vbits)(a > b);
    return (vfloat)(((vbits)a & larger) | ((vbits)b & ~larger));
}
REGARD_INLINE vdouble maximum(vdouble a, vdouble b) {
    vlong larger = (vlong)(a > b);
    return (vdouble)(((vlong)a & larger) | ((vlong)b & ~larger));
}
#endif

// The smaller one; b if either is NaN.
#if defined(__AVX512F__)
REGARD_INLINE vfloat minimum(vfloat a, vfloat b) { return _mm512_min_ps(a, b); }
REGARD_INLINE vdouble minimum(vdouble a, vdouble b) { return _mm512_min_pd(a, b); }
#elif defined(__AVX2__)
REGARD_INLINE vfloat minimum(vfloat a, vfloat b) { return _mm256_min_ps(a, b); }
REGARD_INLINE vdouble minimum(vdouble a, vdouble b) { return _mm256_min_pd(a, b); }
#else
REGARD_INLINE vfloat minimum(vfloat a, vfloat b) { return -maximum(-a, -b); }
REGARD_INLINE vdouble minimum(vdouble a, vdouble b) { return -maximum(-a, -b); }
#endif

// a in lanes whose bit is set, else b. Bits from `lanes` on are ignored.
#if defined(__AVX512F__)
REGARD_INLINE vfloat select(uint32_t bits, vfloat a, vfloat b) { return _mm512_mask_mov_ps(b, (__mmask16)bits, a); }
REGARD_INLINE vdouble select(uint32_t bits, vdouble a, vdouble b) { return _mm512_mask_mov_pd(b, (__mmask8)bits, a); }
#else
REGARD_INLINE vfloat select(uint32_t bits, vfloat a, vfloat b) {
    vbits one;
    for (int i = 0; i < lanes<float>; ++i) one[i] = 1u << i;
    vbits chosen = (vbits)((broadcast<uint32_t>(bits) & one) != 0);
    return (vfloat)(((vbits)a & chosen) | ((vbits)b & ~chosen));
}
REGARD_INLINE vdouble select(uint32_t bits, vdouble a, vdouble b) {
    vlong one;
    for (int i = 0; i < lanes<double>; ++i) one[i] = (uint64_t)1 << i;
    vlong chosen = (vlong)((broadcast<uint64_t>(bits) & one) != 0);
    return (vdouble)(((vlong)a & chosen) | ((vlong)b & ~chosen));
}
#endif

// The lanes in which a > b, as bits.
#if defined(__AVX512F__)
REGARD_INLINE uint32_t compare_greater(vfloat a, vfloat b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
REGARD_INLINE uint32_t compare_greater(vdouble a, vdouble b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ); }
#elif defined(__AVX2__)
REGARD_INLINE uint32_t compare_greater(vfloat a, vfloat b) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
REGARD_INLINE uint32_t compare_greater(vdouble a, vdouble b) {
    return (uint32_t)_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_GT_OQ));
}
#else
template <class V>
REGARD_INLINE uint32_t compare_greater(V a, V b) {
    uint32_t bits = 0;
    for (int i = 0; i < (int)(sizeof(V) / sizeof(a[0])); ++i) bits |= (uint32_t)(a[i] > b[i]) << i;
    return bits;
}
#endif

// Sums and maxima over lanes, always by halves, so that the order is the same in all instruction sets. With a copy by
// memcpy, compilers would keep the vector in memory, also in the loop that accumulates it.
template <class T>
struct Lanes {
    typedef T vector __attribute__((vector_size(vector_bytes), aligned(sizeof(T)), may_alias));
    T x[lanes<T>];
    explicit REGARD_INLINE Lanes(vec<T> v) { *(vector*)x = v; }
};
template <class T, class V>
REGARD_INLINE T sum_lanes(V v) {
    Lanes<T> of(v);
    for (int half = lanes<T> / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; ++i) of.x[i] += of.x[i + half];
    return of.x[0];
}
template <class T, class V>
REGARD_INLINE T max_lane(V v) {
    Lanes<T> of(v);
    for (int half = lanes<T> / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; ++i) of.x[i] = of.x[i] > of.x[i + half] ? of.x[i] : of.x[i + half];
    return of.x[0];
}
#if defined(__AVX512F__)
template <>
REGARD_INLINE float sum_lanes<float, vfloat>(vfloat v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
template <>
REGARD_INLINE float max_lane<float, vfloat>(vfloat v) {
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
#endif

// 2^n as a constant, for small n >= 0.
constexpr double power_of_two(int n) { return n == 0 ? 1 : 2 * power_of_two(n - 1); }

// ---- 2^x for x up to slightly above 0; exactly 0 if x, rounded, is below `lowest`, and for -infinity; NaN for NaN
// By default almost no result is a subnormal number: many processors take a hundred times as long to multiply one.
// With f = x - round(x), 2^f is a polynomial with constant term 1, fitted for the least relative error on [-1/2, 1/2]:
// degree 4: 2.9e-6, degree 6: 2e-9; in double the Taylor series to degree 12: 2e-16.

template <int degree, int lowest = -126>
REGARD_INLINE vfloat exp2(vfloat x) {
    static_assert(degree == 4 || degree == 6, "no such polynomial");
#if defined(__AVX512F__)
    constexpr float one = 1;
    vfloat f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT), whole = x - f;  // f is 0 for an infinity
#else
    // An exponent field of whole - lowest + 1 is 0, and so is the result, from lowest - 1 down: no comparison is needed.
    // That power is 2^(126 + lowest) times too small, so the polynomial is as much larger, which rounds nothing.
    constexpr float one = power_of_two(126 + lowest);
    x = maximum(broadcast((float)(lowest - 1)), x);
    // 1.5 * 2^23 leaves the rounded number in the low bits of the sum.
    const vfloat magic = broadcast(12582912.0f + (1 - lowest));
    vfloat shifted = x + magic;
    vfloat f = x - (shifted - magic);
#endif
    vfloat p;
    if constexpr (degree == 4) {
        p = multiply_add(f, broadcast(one * 0.009582850681343114f), broadcast(one * 0.055906428246035034f));
        p = multiply_add(p, f, broadcast(one * 0.2402409868290099f));
        p = multiply_add(p, f, broadcast(one * 0.6931241927588541f));
    } else {
        p = multiply_add(f, broadcast(one * 0.00015353360632772324f), broadcast(one * 0.001339887486670844f));
        p = multiply_add(p, f, broadcast(one * 0.009618437366409063f));
        p = multiply_add(p, f, broadcast(one * 0.05550332469693607f));
        p = multiply_add(p, f, broadcast(one * 0.24022647913499068f));
        p = multiply_add(p, f, broadcast(one * 0.6931472028559713f));
    }
    p = multiply_add(p, f, broadcast(one));
#if defined(__AVX512F__)
    // "Not less than" includes NaN.
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(whole, broadcast((float)lowest), _CMP_NLT_UQ), p, whole);
#else
    return p * (vfloat)((vec<uint32_t>)shifted << 23);
#endif
}

template <int degree, int lowest = -1022>
REGARD_INLINE vdouble exp2(vdouble x) {
#if defined(__AVX512F__)
    constexpr double one = 1;
    x = maximum(broadcast(-1200.0), x);
    const vdouble magic = broadcast(6755399441055744.0);  // 1.5 * 2^52
#else
    constexpr double one = power_of_two(1022 + lowest);
    x = maximum(broadcast((double)(lowest - 1)), x);
    const vdouble magic = broadcast(6755399441055744.0 + (1 - lowest));
#endif
    vdouble shifted = x + magic;
    vdouble whole = shifted - magic;
    vdouble f = x - whole;
    // ln(2)^k / k!
    vdouble p = broadcast(one * 2.5678435993488206e-11);
    p = multiply_add(p, f, broadcast(one * 4.4455382718708116e-10));
    p = multiply_add(p, f, broadcast(one * 7.054911620801123e-09));
    p = multiply_add(p, f, broadcast(one * 1.0178086009239699e-07));
    p = multiply_add(p, f, broadcast(one * 1.3215486790144307e-06));
    p = multiply_add(p, f, broadcast(one * 1.5252733804059841e-05));
    p = multiply_add(p, f, broadcast(one * 0.0001540353039338161));
    p = multiply_add(p, f, broadcast(one * 0.0013333558146428443));
    p = multiply_add(p, f, broadcast(one * 0.009618129107628477));
    p = multiply_add(p, f, broadcast(one * 0.05550410866482158));
    p = multiply_add(p, f, broadcast(one * 0.2402265069591007));
    p = multiply_add(p, f, broadcast(one * 0.6931471805599453));
    p = multiply_add(p, f, broadcast(one));
#if defined(__AVX512F__)
    return _mm512_maskz_scalef_pd(_mm512_cmp_pd_mask(whole, broadcast((double)lowest), _CMP_NLT_UQ), p, whole);
#else
    return p * (vdouble)((vec<uint64_t>)shifted << 52);
#endif
}

// 2^x of a softmax, where x is at most about 0, and 0 for the largest score. Exactly 0 below 2^-100 (double: 2^-900).
// Beside a weight of 1, a weight that small changes no bit of a sum over 2^31 keys. But products with it, such as the
// gradient of its score, would be subnormal numbers: where the scores of a row have a standard deviation of 22, every
// fifth weight would be between 2^-149 and 2^-126.
template <int degree>
REGARD_INLINE vfloat softmax_weight(vfloat x) {
    return exp2<degree, -100>(x);
}
template <int degree>
REGARD_INLINE vdouble softmax_weight(vdouble x) {
    return exp2<degree, -900>(x);
}

// ---- conversions ----

// Converts a stored number to float or double.
REGARD_INLINE float widen(float x) { return x; }
REGARD_INLINE double widen(double x) { return x; }
REGARD_INLINE float widen(bfloat16 x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}
REGARD_INLINE float widen(float16 x) {
#if defined(__AVX2__)
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x.bits)));
#else
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, magnitude = x.bits & 0x7fff, bits;
    float y;
    if (magnitude >= 0x7c00) {
        bits = 0x7f800000u | (magnitude & 0x3ff) << 13;
    } else {  // 2^112 changes the exponent's bias from 15 to 127, and normalizes numbers below 2^-14
        bits = magnitude << 13;
        memcpy(&y, &bits, 4);
        y *= 5.192296858534828e+33f;
        memcpy(&bits, &y, 4);
    }
    bits |= sign;
    memcpy(&y, &bits, 4);
    return y;
#endif
}

// Loads a vector of stored numbers as float or double.
REGARD_INLINE vfloat load_wide(const float* from) { return load(from); }
REGARD_INLINE vdouble load_wide(const double* from) { return load(from); }
REGARD_INLINE vfloat load_wide(const bfloat16* from) {
#if defined(__AVX512F__)
    __m256i half;
    memcpy(&half, from, sizeof half);
    return (vfloat)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
#elif defined(__AVX2__)
    __m128i half;
    memcpy(&half, from, sizeof half);
    return (vfloat)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
#else
    halves half;
    memcpy(&half, from, sizeof half);
    return (vfloat)(__builtin_convertvector(half, vbits) << 16);
#endif
}
REGARD_INLINE vfloat load_wide(const float16* from) {
#if defined(__AVX512F__)
    __m256i half;
    memcpy(&half, from, sizeof half);
    return _mm512_cvtph_ps(half);
#elif defined(__AVX2__)
    __m128i half;
    memcpy(&half, from, sizeof half);
    return _mm256_cvtph_ps(half);
#else
    vfloat v;
    for (int i = 0; i < lanes<float>; ++i) v[i] = widen(from[i]);
    return v;
#endif
}

// Converts and stores a number, rounded to nearest, ties to even. NaN stays NaN.
REGARD_INLINE void narrow(float x, float* to) { *to = x; }
REGARD_INLINE void narrow(double x, double* to) { *to = x; }
REGARD_INLINE void narrow(float x, double* to) { *to = (double)x; }
REGARD_INLINE void narrow(double x, float* to) { *to = (float)x; }
REGARD_INLINE void narrow(float x, bfloat16* to) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        to->bits = (uint16_t)(bits >> 16 | 0x40);
    else
        to->bits = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
REGARD_INLINE void narrow(float x, float16* to) {
#if defined(__AVX2__)
    to->bits = (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT));
#else
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffffu;
    uint32_t half;
    if (bits > 0x7f800000u) {
        half = 0x7e00 | (bits >> 13 & 0x3ff);
    } else if (bits >= 0x477ff000u) {  // rounds to infinity
        half = 0x7c00;
    } else if (bits < 0x38800000u) {  // below 2^-14: adding 1/2 leaves the rounded number in the low bits
        float y;
        memcpy(&y, &bits, 4);
        y += 0.5f;
        memcpy(&half, &y, 4);
        half -= 0x3f000000u;
    } else {
        half = (bits + 0xfffu + (bits >> 13 & 1) - 0x38000000u) >> 13;
    }
    to->bits = (uint16_t)(half | sign);
#endif
}
// As store_narrow below, but with subnormal numbers, which AVX512_BF16 rounds to 0.
REGARD_INLINE void store_rounded(bfloat16* to, vfloat v) {
    vbits bits = (vbits)v;
    vbits is_nan = (vbits)((vec<int32_t>)(bits & 0x7fffffffu) > 0x7f800000);
    vbits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, quiet = bits >> 16 | 0x40u;
    halves half = __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), halves);
    memcpy(to, &half, sizeof half);
}
REGARD_INLINE void store_narrow(float* to, vfloat v) { store(to, v); }
REGARD_INLINE void store_narrow(double* to, vdouble v) { store(to, v); }
REGARD_INLINE void store_narrow(bfloat16* to, vfloat v) {
#if defined(__AVX512BF16__)
    __m256i half = (__m256i)_mm512_cvtneps_pbh(v);
    memcpy(to, &half, sizeof half);
#else
    store_rounded(to, v);
#endif
}
REGARD_INLINE void store_narrow(float16* to, vfloat v) {
#if defined(__AVX512F__)
    __m256i half = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    memcpy(to, &half, sizeof half);
#elif defined(__AVX2__)
    __m128i half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    memcpy(to, &half, sizeof half);
#else
    for (int i = 0; i < lanes<float>; ++i) narrow(v[i], to + i);
#endif
}

template <class T, class V>
REGARD_INLINE void store_rounded(T* to, V v) {
    store_narrow(to, v);
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

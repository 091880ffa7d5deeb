// The number types in which products are computed. A *unit* is the operand of one lane in one multiply-add:
//
//     Float32, Float64   unit = one number                     sum += a * b
//     Bfloat16           unit = two bfloat16 numbers           sum += a0 * b0 + a1 * b1, in float32 (AVX512_BF16)
//
// So a row of n numbers has count_units(n) units, and the kernels are the same for all types.
#pragma once

#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

struct OfVectors {
    static constexpr bool has_matrix_unit = false;  // see matrix_unit.h
};

struct Float32 : OfVectors {
    typedef float number;   // type of sums
    typedef float storage;  // type of tokens before they are packed
    typedef float unit;
    static constexpr int per_unit = 1;
    static constexpr int degree = 6;
    static constexpr int group = 8;  // maximum of key tiles that the forward pass processes together
    static REGARD_INLINE vfloat multiply_add(unit a, vec<unit> b, vfloat sum) {
        return REGARD_ISA_NAMESPACE::multiply_add(broadcast(a), b, sum);
    }
    static REGARD_INLINE vfloat multiply_add_vectors(vec<unit> a, vec<unit> b, vfloat sum) {
        return REGARD_ISA_NAMESPACE::multiply_add(a, b, sum);
    }
};

struct Float64 : OfVectors {
    typedef double number;
    typedef double storage;
    typedef double unit;
    static constexpr int per_unit = 1;
    static constexpr int degree = 12;
    static constexpr int group = 8;
    static REGARD_INLINE vdouble multiply_add(unit a, vec<unit> b, vdouble sum) {
        return REGARD_ISA_NAMESPACE::multiply_add(broadcast(a), b, sum);
    }
    static REGARD_INLINE vdouble multiply_add_vectors(vec<unit> a, vec<unit> b, vdouble sum) {
        return REGARD_ISA_NAMESPACE::multiply_add(a, b, sum);
    }
};

#if defined(__AVX512BF16__)
struct Bfloat16 : OfVectors {
    typedef float number;
    typedef bfloat16 storage;
    typedef uint32_t unit;
    static constexpr int per_unit = 2;
    static constexpr int degree = 4;
    static constexpr int group = 8;
    static REGARD_INLINE vfloat multiply_add(unit a, vec<unit> b, vfloat sum) {
        return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
    }
    static REGARD_INLINE vfloat multiply_add_vectors(vec<unit> a, vec<unit> b, vfloat sum) {
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    }
    // Rounds to bfloat16, as the operands of products are.
    static REGARD_INLINE vfloat round_to_bfloat16(vfloat x) {
        const __m256i half = (__m256i)_mm512_cvtneps_pbh(x);
        return (vfloat)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
    }
};
#endif

template <class A>
REGARD_INLINE int64_t count_units(int64_t numbers) {
    return (numbers + A::per_unit - 1) / A::per_unit;
}

// The length of a row of a packed matrix: the columns, rounded up to whole vectors.
template <class A>
REGARD_INLINE int64_t padded_width(int64_t columns) {
    constexpr int64_t width = lanes<typename A::number>;
    return (columns + width - 1) / width * width;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

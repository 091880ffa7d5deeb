// How scores become weights: a policy of the kernels, which is otherwise the same for both.
//
//     Softmax    w_ij = exp(s_ij) / sum_j exp(s_ij)         dS_ij = w_ij (D_ij - sum_j w_ij D_ij)
//     Sigmoid    w_ij = 1 / (1 + exp(-(s_ij + b_i)))        dS_ij = w_ij (1 - w_ij) D_ij      D_ij = dO_i . v_j
//
// A softmax is normalized: a weight depends on the scores of all keys, so the kernels keep a running maximum and sum,
// and the gradient needs a sum over keys. A sigmoid depends on its own score alone.
#pragma once

#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

struct Softmax {
    static constexpr bool is_normalized = true;
};
struct Sigmoid {
    static constexpr bool is_normalized = false;
};

// w = 1 / (1 + 2^x), and the derivative w (1 - w) = 2^x w^2 of the sigmoid, for x = -s log2 e. Both have a small
// relative error for any x: 1 - w would lose all digits where w is near 1. Below 2^-100 (double: 2^-900) they are
// exactly 0, as the weights of a softmax are, and w is exactly 1 where 2^x is.
template <class V>
struct SigmoidWeight {
    V weight, slope;

    template <int degree>
    static REGARD_INLINE SigmoidWeight of(V x);
};

template <>
template <int degree>
REGARD_INLINE SigmoidWeight<vfloat> SigmoidWeight<vfloat>::of(vfloat x) {
    const vfloat most = broadcast(100.0f), one = broadcast(1.0f);
#if defined(__AVX512F__)
    // For large x, e is infinite, and the numbers that follow may be NaN; the mask makes the results 0. NaN stays NaN.
    const __mmask16 below = _mm512_cmp_ps_mask(x, most, _CMP_NGE_UQ);
    const vfloat e = exp2<degree, -100>(x), sum = one + e;
    vfloat w = _mm512_maskz_rcp14_ps(below, sum);
    // A Newton step, except for bfloat16. From an error d, at most 2^-14, it makes d^2: for a sum of 1, w is exactly 1.
    if constexpr (degree > 4) w = _mm512_maskz_fmadd_ps(below, w, multiply_add(-sum, w, one), w);
    return {w, _mm512_maskz_mul_ps(below, e * w, w)};
#else
    const vfloat e = exp2<degree, -100>(minimum(most, x));
    const vfloat w = (vfloat)((vbits)(one / (one + e)) & ~(vbits)(x >= most));
    return {w, e * w * w};
#endif
}

template <>
template <int degree>
REGARD_INLINE SigmoidWeight<vdouble> SigmoidWeight<vdouble>::of(vdouble x) {
    const vdouble most = broadcast(900.0);
    const vdouble e = exp2<degree, -900>(minimum(most, x));
    const vdouble w = (vdouble)((vlong)(1 / (1 + e)) & ~(vlong)(x >= most));
    return {w, e * w * w};
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

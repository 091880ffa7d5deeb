// How scores become weights: a policy of the kernels, which is otherwise the same for both.
//
//     Softmax    w_ij = exp(s_ij) / sum_j exp(s_ij)         dS_ij = w_ij (D_ij - sum_j w_ij D_ij)
//     Sigmoid    w_ij = 1 / (1 + exp(-(s_ij + b_i)))        dS_ij = w_ij (1 - w_ij) D_ij      D_ij = dO_i . v_j
//
// A softmax is normalized: a weight depends on the scores of all keys, so the kernels keep a running maximum and sum,
// and the gradient needs a sum over keys. A sigmoid depends on its own score alone.
#pragma once

#include "simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

struct Softmax {
    static constexpr bool is_normalized = true;
};
struct Sigmoid {
    static constexpr bool is_normalized = false;
};

// -|x|; NaN for NaN
REGARD_INLINE vfloat negative_magnitude(vfloat x) { return (vfloat)((vbits)x | broadcast<uint32_t>(0x80000000u)); }
REGARD_INLINE vdouble negative_magnitude(vdouble x) {
    return (vdouble)((vlong)x | broadcast<uint64_t>((uint64_t)1 << 63));
}

// 1 / x for x in [1, 2]. Exact for 1: an error e of the estimate becomes e^2 <= 2^-28, less than half a unit.
REGARD_INLINE vdouble reciprocal(vdouble x) {
    return 1 / x;
}
REGARD_INLINE vfloat reciprocal(vfloat x) {
#if defined(__AVX512F__)
    const vfloat estimate = _mm512_rcp14_ps(x);
    return multiply_add(estimate, multiply_add(-x, estimate, broadcast(1.0f)), estimate);
#else
    return 1 / x;
#endif
}

// a in lanes in which x > 0, else b.
#if defined(__AVX512F__)
template <class V>
REGARD_INLINE V select_positive(V x, V a, V b) {
    return select(compare_greater(x, V{}), a, b);
}
#else
REGARD_INLINE vfloat select_positive(vfloat x, vfloat a, vfloat b) {
    const vbits positive = (vbits)(x > vfloat{});
    return (vfloat)(((vbits)a & positive) | ((vbits)b & ~positive));
}
REGARD_INLINE vdouble select_positive(vdouble x, vdouble a, vdouble b) {
    const vlong positive = (vlong)(x > vdouble{});
    return (vdouble)(((vlong)a & positive) | ((vlong)b & ~positive));
}
#endif

// w = 1 / (1 + e^-x), and its derivative w (1 - w). With e = e^-|x|, the larger of w and 1 - w is 1 / (1 + e) and the
// smaller is e / (1 + e), so both results have a small relative error for any x. For large |x|, e is exactly 0 (see
// softmax_weight), and w is 0 or 1.
template <class V>
struct SigmoidWeight {
    V weight, slope;

    template <int degree>
    static REGARD_INLINE SigmoidWeight of(V x) {
        typedef decltype(x[0] + 0) number;
        const V e = softmax_weight<degree>(negative_magnitude(x) * broadcast((number)log2_e));
        const V larger = reciprocal(1 + e), smaller = e * larger;
        return {select_positive(x, larger, smaller), larger * smaller};
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

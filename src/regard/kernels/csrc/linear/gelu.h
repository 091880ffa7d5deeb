// The activations that have an exponential, and their derivatives:
//
//     gelu       x P(x),  P(x) = erfc(-x / sqrt 2) / 2            Hendrycks and Gimpel 2016, section 2
//                derivative P(x) + x p(x),  p(x) = exp(-x^2 / 2) / sqrt(2 pi)
//     gelu_tanh  x s(v),  v = 2 sqrt(2 / pi) (x + 0.044715 x^3),  s(v) = 1 / (1 + exp(-v))        the same, section 2
//                derivative s(v) + x s(v) (1 - s(v)) dv/dx
//     quick_gelu x s(v),  v = 1.702 x                             the same, section 2
//                derivative s(v) (1 + v (1 - s(v)))
//     silu       x s(x)                                           Elfwing et al. 2018
//                derivative s(x) (1 + x (1 - s(x)))
//
//     erfc(z) = exp(-z^2) t q(t),  t = 1 / (1 + 0.36 z),  z >= 0
//
// q is the polynomial of degree 9 whose largest relative error, 4e-8, is least; it was found by Remez' algorithm. So P(x)
// has no cancellation for negative x, and needs the same exponential as p(x).
#pragma once

#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

struct Gelu {
    // 1 / (1 + exp(-x)). Beyond 2^126 the exponential is not computed: there the result is below 2^-126.
    static REGARD_INLINE vfloat sigmoid(vfloat x) {
        const vfloat power = minimum(broadcast(126.0f), x * broadcast((float)-log2_e)), one = broadcast(1.0f);
        return one / (one + exp2<6>(power));
    }

    static REGARD_INLINE vfloat gelu(vfloat x) {
        vfloat unused;
        const vfloat share = normal_distribution(x, &unused);
        return at_least(-40.0f, x) * share;
    }
    static REGARD_INLINE vfloat gelu_derivative(vfloat x) {
        vfloat density;
        const vfloat share = normal_distribution(x, &density);
        return multiply_add(x, density, share);
    }

    static REGARD_INLINE vfloat gelu_tanh(vfloat x) {
        x = at_least(-40.0f, x);
        return x * sigmoid(x * multiply_add(x * x, broadcast(cubic), broadcast(1.0f)) * broadcast(twice));
    }
    static REGARD_INLINE vfloat gelu_tanh_derivative(vfloat x) {
        // Beyond 12 the sigmoid is 0 or 1 in float32, and x^2 would become infinite.
        x = at_least(-12.0f, minimum(broadcast(12.0f), x));
        const vfloat square = x * x, one = broadcast(1.0f);
        const vfloat s = sigmoid(x * multiply_add(square, broadcast(cubic), one) * broadcast(twice));
        const vfloat slope = multiply_add(square, broadcast(3 * cubic * twice), broadcast(twice));
        return multiply_add(x * s * (one - s), slope, s);
    }

    static REGARD_INLINE vfloat quick_gelu(vfloat x) {
        x = at_least(-62.0f, x);
        return x * sigmoid(x * broadcast(quick));
    }
    static REGARD_INLINE vfloat quick_gelu_derivative(vfloat x) {
        return silu_derivative(minimum(broadcast(104.0f), x) * broadcast(quick));  // 1.702 x may overflow
    }

    static REGARD_INLINE vfloat silu(vfloat x) { return at_least(-104.0f, x) * sigmoid(x); }
    static REGARD_INLINE vfloat silu_derivative(vfloat x) {
        x = at_least(-104.0f, x);
        const vfloat s = sigmoid(x), one = broadcast(1.0f);
        return s * multiply_add(x, one - s, one);
    }

private:
    static constexpr float twice = 1.5957691216057308f;  // 2 sqrt(2 / pi)
    static constexpr float cubic = 0.044715f;
    static constexpr float quick = 1.702f;

    // The larger one of both, and NaN for NaN: what is below is multiplied by 0, or by 2^-126.
    static REGARD_INLINE vfloat at_least(float bound, vfloat x) { return maximum(broadcast(bound), x); }

    // P(x); p(x) is set.
    static REGARD_INLINE vfloat normal_distribution(vfloat x, vfloat* density) {
        const vfloat one = broadcast(1.0f), size = maximum(-x, x);
        const vfloat power = exp2<6>(x * x * broadcast((float)(-0.5 * log2_e)));
        const vfloat t = one / multiply_add(size, broadcast(0.36f * 0.7071067811865476f), one);
        vfloat q = multiply_add(t, broadcast(0.0376621270308f), broadcast(-0.14196823472f));
        q = multiply_add(q, t, broadcast(0.143423504768f));
        q = multiply_add(q, t, broadcast(-0.0286349286437f));
        q = multiply_add(q, t, broadcast(0.106515695594f));
        q = multiply_add(q, t, broadcast(0.12292527333f));
        q = multiply_add(q, t, broadcast(0.163916572623f));
        q = multiply_add(q, t, broadcast(0.189944044994f));
        q = multiply_add(q, t, broadcast(0.203107723001f));
        q = multiply_add(q, t, broadcast(0.203108257227f));
        const vfloat below = broadcast(0.5f) * power * t * q;  // P(-|x|)
        *density = power * broadcast(0.3989422804014327f);
        return select(compare_greater(x, vfloat{}), one - below, below);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

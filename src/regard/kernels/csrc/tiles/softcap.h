// Soft capping of scores, before a bias is added and the mask applied:
//
//     t_ij = c tanh(s_ij / c),    s_ij = scale q_i . k_j       Gemma Team 2024 (Gemma 2), section 2
//     dt/ds = 1 - tanh^2(s / c) = 4 e / (1 + e)^2              e = exp(-2 |s| / c)
//
// For small u = s / c, t = s + s u^2 P(u^2): the score itself, with a small correction. P is the polynomial through
// (tanh(u) / u - 1) / u^2 at Chebyshev nodes. For other u, t = c (1 - e) / (1 + e). e is at most 1, so nothing
// overflows for any score; the slope is computed from e for every u, since 1 - tanh^2 would lose all digits for large
// ones. It is exactly 0 below 2^-100 (double: 2^-900), as weights are: see softmax_weight.
//
// Kernels pass the products of a panel through memory: with the function inlined for each size of a panel, they would
// be several times as large, and calls without a cap would pay for it.
#pragma once

#include "tiles/problem.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class Number>
struct TanhSeries;
template <>
struct TanhSeries<float> {
    static constexpr int degree = 6, lowest = -100;  // of exp2
    static constexpr float largest = 3.4028234663852886e38f;
    static constexpr float small = 0.4f;  // up to which P has a relative error of t of 6e-9
    static REGARD_INLINE vfloat polynomial(vfloat z) {
        vfloat p = multiply_add(z, broadcast(0.01926804597461479f), broadcast(-0.05371512141875536f));
        p = multiply_add(p, z, broadcast(0.13332532080303897f));
        return multiply_add(p, z, broadcast(-0.3333332933517014f));
    }
};
template <>
struct TanhSeries<double> {
    static constexpr int degree = 12, lowest = -900;
    static constexpr double largest = 1.7976931348623157e308;
    static constexpr double small = 0.3;  // 3e-18
    static REGARD_INLINE vdouble polynomial(vdouble z) {
        vdouble p = multiply_add(z, broadcast(0.0005109249704674158), broadcast(-0.0014445898532447449));
        p = multiply_add(p, z, broadcast(0.0035912834611108225));
        p = multiply_add(p, z, broadcast(-0.008863200177142575));
        p = multiply_add(p, z, broadcast(0.021869487730074903));
        p = multiply_add(p, z, broadcast(-0.053968253959211114));
        p = multiply_add(p, z, broadcast(0.13333333333329464));
        return multiply_add(p, z, broadcast(-0.3333333333333333));
    }
};

template <class Number>
struct Softcap {
    typedef TanhSeries<Number> Series;
    static constexpr int width = lanes<Number>;

    bool is_present;
    Number scale, cap, inverse;  // the factor of products; c; 1 / c

    REGARD_INLINE Softcap(const Problem& p, Number scale) : is_present(p.softcap > 0), scale(scale) {
        cap = (Number)(p.softcap < Series::largest ? p.softcap : Series::largest);
        const double reciprocal = is_present ? 1 / p.softcap : 0;
        inverse = (Number)(reciprocal < Series::largest ? reciprocal : Series::largest);
    }
    REGARD_INLINE explicit operator bool() const { return is_present; }

    // Replaces products by capped scores, and, if slopes is not null, writes dt/ds. Columns are whole vectors.
    __attribute__((noinline)) void apply(Number* products, int64_t rows, int64_t columns, int64_t stride,
                                         Number* slopes, int64_t slope_stride) const {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t j = 0; j < columns; j += width) {
                Number* at = products + r * stride + j;
                vec<Number> slope;
                store(at, cap_score(load(at) * broadcast(scale), &slope));
                if (slopes) store(slopes + r * slope_stride + j, slope);
            }
    }

    // The same for the sums of a panel.
    template <class S>
    REGARD_INLINE void apply_to(S& sums, Number* slopes = nullptr, int64_t slope_stride = 0) const {
        constexpr int64_t columns = S::panel * width;
        Number products[S::height * columns];
        sums.store_to(products, columns);
        apply(products, S::height, columns, columns, slopes, slope_stride);
        sums.load_from(products, columns);
    }

    REGARD_INLINE vec<Number> cap_score(vec<Number> s, vec<Number>* slope) const {
        const vec<Number> u = s * broadcast(inverse), size = maximum(u, -u), one = broadcast((Number)1);
        const vec<Number> e = exp2<Series::degree, Series::lowest>(size * broadcast((Number)(-2 * log2_e)));
        const vec<Number> share = one / (one + e);
        *slope = 4 * e * share * share;
        const vec<Number> large = (one - e) * share * broadcast(cap), z = u * u;
        const vec<Number> near_0 = multiply_add(s * z, Series::polynomial(z), s);
        const vec<Number> positive = select(compare_greater(broadcast(Series::small), size), near_0, large);
        const vec<Number> negative = select(compare_greater(broadcast(Series::small), size), near_0, -large);
        return select(compare_greater(vec<Number>{}, s), negative, positive);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

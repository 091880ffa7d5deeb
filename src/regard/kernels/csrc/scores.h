// What is added to and taken from scores before the softmax: bias rows, in the units of the exponent.
//
// The softmax is computed in powers of two: exp(s) = 2^(s log2 e), and log2 e is folded into the scale and the bias.
#pragma once

#include <math.h>

#include "tiles.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

inline constexpr double log2_e = 1.4426950408889634;
inline constexpr double ln_2 = 0.6931471805599453;

// One row of bias, 64 keys from `first`, times log2 e; zeros where there are no more keys.
template <class Number>
struct BiasRows {
    const Problem& p;
    int64_t batch, head;

    REGARD_INLINE bool any() const { return (bool)p.bias || (bool)p.table; }

    REGARD_INLINE void read(int64_t query, int64_t first, Number* to) const {
        int64_t count = smaller(p.keys - first, tile);
        if (p.bias) {
            const Array& b = p.bias;
            int64_t at = b.at(batch, head, query, first);
            switch (b.dtype) {
                case Dtype::float32: copy((const float*)b.data + at, b.stride[3], count, to); break;
                case Dtype::bfloat16: copy((const bfloat16*)b.data + at, b.stride[3], count, to); break;
                case Dtype::float16: copy((const float16*)b.data + at, b.stride[3], count, to); break;
                default: copy((const double*)b.data + at, b.stride[3], count, to); break;
            }
            for (int64_t j = count; j < tile; ++j) to[j] = 0;
        } else {
            for (int64_t j = 0; j < tile; j += n) store(to + j, vec<Number>{});
        }
        if (p.table) {
            const Array& t = p.table;
            int64_t distance = first - (query + p.offset) - p.table_lowest, j = 0;
            const Number* row = (const Number*)t.data + (t.shape[2] == 1 ? 0 : head) * t.stride[2];
            const vec<Number> unit = broadcast((Number)log2_e);
            if (t.stride[3] == 1)
                for (; j + n <= count; j += n)
                    store(to + j, multiply_add(load(row + distance + j), unit, load(to + j)));
            for (; j < count; ++j) to[j] += row[(distance + j) * t.stride[3]] * (Number)log2_e;
        }
    }

  private:
    static constexpr int n = lanes<Number>;

    // A finite number stays finite in the units of the exponent: -3.4e38 is often used for "nearly never", and must not
    // become the -infinity that forbids.
    static REGARD_INLINE vec<Number> in_exponent(vec<Number> x) {
        const vec<Number> bound = broadcast(sizeof(Number) == 8 ? (Number)8e307 : (Number)1.6e38);
        vec<Number> y = x * broadcast((Number)log2_e);
        uint32_t finite = greater(broadcast((Number)1), x - x);
        return select(finite, maximum(-bound, minimum(bound, y)), y);
    }

    template <class T>
    static REGARD_INLINE void copy(const T* from, int64_t step, int64_t count, Number* to) {
        int64_t j = 0;
        if constexpr (sizeof(T) <= sizeof(Number) && (sizeof(Number) == 4 || sizeof(T) == 8))
            if (step == 1)
                for (; j + n <= count; j += n) store(to + j, in_exponent(load_wide(from + j)));
        for (; j < count; ++j) to[j] = in_exponent(broadcast((Number)widen(from[j * step])))[0];
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

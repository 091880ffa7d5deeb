// What the kernels of rows of logits share: the largest number of a row, and the weight of one.
#pragma once

#include <math.h>

#include "tiles/compute_types.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// T: the dtype of the logits.
template <class T>
struct Logits {
    typedef decltype(widen(T())) number;
    typedef vec<number> numbers;
    static constexpr int width = lanes<number>, degree = sizeof(number) == 8 ? Float64::degree : Float32::degree;

    // NaN is smaller than any number.
    static REGARD_INLINE number largest(const T* x, int64_t count) {
        numbers most = broadcast((number)-INFINITY);
        int64_t v = 0;
        for (; v + width <= count; v += width) most = maximum(load_wide(x + v), most);
        number top = max_lane<number>(most);
        for (; v < count; ++v) top = widen(x[v]) > top ? widen(x[v]) : top;
        return top;
    }

    // 2^((x - top) log2 e - log_sum)
    static REGARD_INLINE number compute_weight(T logit, number top, number log_sum) {
        return (number)::exp2((double)(widen(logit) - top) * log2_e - (double)log_sum);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// The end of a linear layer of many tokens: y = a(sum + bias), for sums of a panel of outputs.
#pragma once

#include "decode/sublayer.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// T: the dtype of the results. Rows of sums are `width` apart, rows of results `stride`; `columns` of them are written.
template <class T>
struct FinishSums {
    static constexpr int64_t n = lanes<float>;
    typedef void (*Function)(const float* sums, int64_t width, const float* bias, int64_t rows, int64_t columns, T* to,
                             int64_t stride);

    static Function choose(Activation activation) {
        Function chosen = nullptr;
        SublayerFunctions<T>::with_activation(activation, [&](auto kind) { chosen = finish<kind.value>; });
        return chosen;
    }

private:
    template <Activation activation>
    static void finish(const float* sums, int64_t width, const float* bias, int64_t rows, int64_t columns, T* to,
                       int64_t stride) {
        for (int64_t row = 0; row < rows; ++row, sums += width, to += stride)
            for (int64_t o = 0; o < columns; o += n) {
                const vfloat y = SublayerFunctions<T>::template apply<activation>(load(sums + o) + load(bias + o));
                if (columns - o >= n) {
                    store_rounded(to + o, y);
                } else {
                    T last[n];
                    store_rounded(last, y);
                    memcpy((void*)(to + o), last, sizeof(T) * (size_t)(columns - o));
                }
            }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

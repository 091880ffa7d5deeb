// Dropout of an array: output_i = token_i / (1 - p) if element i is kept, and 0 if it is dropped, whatever the token
// is.
//
// Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting", section 10. Random
// numbers are drawn per block of elements, so that the mask of an element depends on the seed and its index only. The
// gradient is the same function of the output's gradient.
#pragma once

#include "tables/kernel_table.h"
#include "tiles/random.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class T>
struct Dropout {
    typedef decltype(widen(T())) number;

    static void run(const DropoutArguments& dropout_arguments, int64_t block) {
        const int64_t first = block * dropout_block, left = dropout_arguments.count - first;
        const int64_t count = left < dropout_block ? left : dropout_block;
        const T* from = (const T*)dropout_arguments.tokens.data + first;
        T* to = (T*)dropout_arguments.output.data + first;
        const DropoutMask drop_mask(dropout_arguments.seed, 0, (uint64_t)block);
        const uint32_t threshold = drop_threshold(dropout_arguments.probability);
        const number scale = (number)(1 / (1 - dropout_arguments.probability));
        int64_t i = 0;
        for (; i + lanes<number> <= count; i += lanes<number>)
            store_rounded(to + i,
                          apply_dropout(drop_mask, (uint32_t)i, threshold, load_wide(from + i) * broadcast(scale)));
        for (; i < count; ++i) narrow(drop_mask.number((uint32_t)i) < threshold ? 0 : widen(from[i]) * scale, to + i);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

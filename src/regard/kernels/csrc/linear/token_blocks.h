// The order in which a linear layer of few tokens is computed, whatever its weights: blocks of some tokens and some rows of
// weights, whose sums are in registers.
//
// Kernel has most_tokens, count_weights(tokens), the rows of weights beside so many tokens, packed_bytes(inputs), and
// block<tokens, weights>(given, packed, row, o), which computes the outputs o .. o + weights - 1 of the tokens from `row` on.
#pragma once

#include "linear/projection_kernels.h"
#include "tiles/mask_tiles.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class Kernel>
struct TokenBlocks {
    static constexpr int most_tokens = Kernel::most_tokens;

    // Computes the outputs first .. stop - 1 of all packed tokens.
    static void project(const ProjectionArguments& given, const char* packed, int64_t first, int64_t stop) {
        const int64_t rows = given.rows, each = (int64_t)Kernel::packed_bytes(given.inputs);
        if (rows <= most_tokens) return some<most_tokens>(given, packed, 0, rows, first, stop);
        // A few rows of weights multiply all tokens while they are in the first cache.
        constexpr int64_t some_weights = Kernel::count_weights(most_tokens);
        for (int64_t o = first; o < stop; o += some_weights)
            for (int64_t row = 0; row < rows; row += most_tokens)
                some<most_tokens>(given, packed + row * each, row, min_of(rows - row, (int64_t)most_tokens), o,
                                  min_of(o + some_weights, stop));
    }

private:
    // `count` is 1 .. most.
    template <int most>
    static REGARD_INLINE void some(const ProjectionArguments& given, const char* packed, int64_t row, int64_t count,
                                   int64_t first, int64_t stop) {
        if constexpr (most > 1)
            if (count < most) return some<most - 1>(given, packed, row, count, first, stop);
        tokens<most>(given, packed, row, first, stop);
    }

    template <int count>
    static __attribute__((noinline)) void tokens(const ProjectionArguments& given, const char* packed, int64_t row,
                                                 int64_t first, int64_t stop) {
        constexpr int weights = Kernel::count_weights(count);
        int64_t o = first;
        for (; o + weights <= stop; o += weights) Kernel::template block<count, weights>(given, packed, row, o);
        for (; o < stop; ++o) Kernel::template block<count, 1>(given, packed, row, o);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

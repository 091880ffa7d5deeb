// A convolution of tokens with one filter for each head: its arguments and drivers (token_convolution.cpp), and what one
// instruction set offers for it, compiled apart from the other kernels (convolution_kernels.cpp). The equations are in
// token_convolution.h.
#pragma once

#include "tiles/problem.h"

namespace regard {

inline constexpr int64_t convolution_block = 256;  // rows of a task
inline constexpr int64_t filter_rows = 1024;       // outputs of a part of a filter's gradient

// from (batch, sources, keys, channels), filters (the larger number of heads, size), base (as into, or absent) and into
// (batch, heads, queries, channels), float32 or float64. One of sources and heads is a multiple of the other: heads that share
// a source, or sums of sources.
struct ConvolutionArguments {
    Array from, filters, base, into;
    int64_t offset = 0;

    REGARD_INLINE int64_t size() const { return filters.shape[3]; }
};
void convolve_tokens(const ConvolutionArguments& given, int threads);

// The gradient of the filters `into` (heads, size), from those of the output (batch, heads, queries, channels).
struct FilterGradients {
    Array output, from, into;
    int64_t offset = 0;

    REGARD_INLINE int64_t size() const { return into.shape[3]; }
};
void differentiate_filters(const FilterGradients& given, int threads);

struct ConvolutionKernels {
    size_t (*scratch)(const ConvolutionArguments&);
    void (*convolve)(const ConvolutionArguments&, int64_t batch, int64_t head, int64_t first, int64_t stop, char* scratch);
    size_t (*filter_scratch)(const FilterGradients&);
    void (*differentiate_filter)(const FilterGradients&, int64_t batch, int64_t head, int64_t first, int64_t stop,
                                 char* part, char* scratch);
    void (*join_filter)(const FilterGradients&, int64_t head, int64_t parts, char* const* from);
};

// Compared with AVX-512, AVX512_BF16 adds nothing here: numbers are float32 or float64.
namespace avx512 { const ConvolutionKernels& convolution_kernels(Dtype); }
namespace avx2 { const ConvolutionKernels& convolution_kernels(Dtype); }
namespace portable { const ConvolutionKernels& convolution_kernels(Dtype); }

}  // namespace regard

// Linear layers of few tokens, as in a decoding step: what one instruction set offers for them, compiled apart from the
// other kernels (projection_kernels.cpp). The driver and the choice of the table are in projection.cpp, the equation is
// in projection.h.
#pragma once

#include "tiles/problem.h"

namespace regard {

// The numbers of tokens up to which these kernels are faster than those for many tokens, which share weights between tokens
// better. With weights of few bits both are as fast for 6 tokens if weights are in a cache, else for 12.
constexpr int64_t few_tokens = 16, few_tokens_of_integers = 8;

// tokens (rows, inputs) and output (rows, outputs), of one dtype; weight (outputs, inputs), of that dtype; bias (outputs) in
// the dtype of the tokens, or absent. All are contiguous. Weights of few bits (integer_products.h) are
//
//     int8     weight (outputs, inputs), scale (outputs, 1, groups) bfloat16
//     int4     weight (outputs, 64 pairs of groups) uint8, scale (outputs, 2, groups) bfloat16: scales and minima
constexpr int64_t integer_group = 64;  // inputs with one scale
struct ProjectionArguments {
    Array tokens, weight, scale, bias, output;
    int64_t rows = 0, inputs = 0, outputs = 0;
};
void project(const ProjectionArguments& given, int threads);

struct ProjectionKernels {
    // Bytes of one packed token.
    size_t (*packed_bytes)(int64_t inputs);
    // Packs a row of tokens: as the weights are multiplied, with zeros behind the last number.
    void (*pack)(const ProjectionArguments&, int64_t row, char* packed);
    // Computes the outputs first .. stop - 1 of all packed tokens.
    void (*project)(const ProjectionArguments&, const char* packed, int64_t first, int64_t stop);
};

// The tables, by the dtype of tokens and weights.
namespace avx512_bf16 { const ProjectionKernels& projection_kernels(Dtype tokens); }
namespace avx512 { const ProjectionKernels& projection_kernels(Dtype tokens); }
namespace avx2 { const ProjectionKernels& projection_kernels(Dtype tokens); }
namespace portable { const ProjectionKernels& projection_kernels(Dtype tokens); }

}  // namespace regard

// Linear layers of few tokens, as in a decoding step: what one instruction set offers for them, compiled apart from the
// other kernels (projection_kernels.cpp). The driver and the choice of the table are in projection.cpp, the equation is
// in projection.h.
#pragma once

#include "tiles/problem.h"

namespace regard {

// The number of tokens up to which these kernels are faster than those for many tokens, which share weights between tokens
// better. Weights of few bits have one kernel for both: few tokens are multiplied in tasks of some outputs, many also in
// tasks of some rows.
constexpr int64_t few_tokens = 16;

// tokens (rows, inputs) and output (rows, outputs), of one dtype; weight (outputs, inputs), of that dtype; bias (outputs) in
// the dtype of the tokens, or absent. All are contiguous. Weights of few bits (integer_linear.h) are in panels of 16 outputs,
// the last of which is filled up with zeros:
//
//     int8     weight (panels, groups, 1024), scale (panels, groups, 16) bfloat16
//     int4     weight (panels, pairs of groups, 1024) uint8, scale (panels, groups, 32) bfloat16: scales and minima
//
// 1024 bytes are (16, 16, 4): units of four inputs, outputs, and the inputs of a unit. A byte of int4 has a number of the
// first group in its lower four bits, and that of the second group in the upper. The last pair is filled up.
constexpr int64_t integer_group = 64;  // inputs with one scale
constexpr int64_t integer_panel = 16;  // outputs
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

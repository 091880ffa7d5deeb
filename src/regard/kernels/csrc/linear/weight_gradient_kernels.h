// The gradients of the weights of linear layers: what one instruction set offers for them (weight_gradient_kernels.cpp).
// The equation is in weight_gradient.h, the driver in weight_gradient.cpp.
#pragma once

#include "tiles/problem.h"

namespace regard {

// tokens (rows, inputs), gradient (rows, outputs), float32 with contiguous rows; of_weight (outputs, inputs), contiguous,
// and of_bias (outputs), or absent, are written.
struct WeightGradientArguments {
    Array tokens, gradient, of_weight, of_bias;
    int64_t rows = 0, inputs = 0, outputs = 0;
};
void weight_gradient(const WeightGradientArguments& given, int threads);

struct WeightGradientKernels {
    void (*pack)(const Array& from, int64_t first_row, int64_t count, int64_t first, float* to, float* sums);
    void (*add_product)(const float* left, const float* right, int64_t rows, float* sums);
};

namespace avx512 { const WeightGradientKernels& weight_gradient_kernels(); }
namespace avx2 { const WeightGradientKernels& weight_gradient_kernels(); }
namespace portable { const WeightGradientKernels& weight_gradient_kernels(); }

}  // namespace regard

// Linear layers of many tokens: what one instruction set offers for them (linear_kernels.cpp). The equation is in linear.h,
// the driver in linear.cpp.
#pragma once

#include "decode/sublayer_kernels.h"
#include "linear/projection_kernels.h"

namespace regard {

// As in projection_kernels.h.
struct LinearArguments : ProjectionArguments {
    Activation activation = Activation::identity;
};
void linear(const LinearArguments& given, int threads);
// Inputs are a multiple of this number; 0 if the instruction set in use has no kernels for the dtype.
int64_t linear_unit(Dtype dtype);

struct LinearKernels {
    int64_t panel;         // outputs that are computed together
    int64_t least_rows;    // of a block: where weights are packed, fewer would cost a share of its time
    int64_t number_bytes;  // of a number of a token, as it is multiplied, rounded up
    int64_t per_unit;      // `inputs` is a multiple of it
    // Bytes of scratch memory of a thread.
    size_t (*scratch_bytes)(int64_t inputs);
    // Computes the outputs first .. first + panel - 1, or up to the last one, of the rows row .. stop - 1.
    void (*multiply)(const LinearArguments&, int64_t first, int64_t row, int64_t stop, char* scratch);
    // Tokens may be prepared first, rounded for weights of few bits or widened: the bytes of one, and the preparation of the
    // tokens row .. stop - 1. Null if they are multiplied as they are stored.
    size_t (*token_bytes)(int64_t inputs) = nullptr;
    void (*prepare_tokens)(const LinearArguments&, int64_t row, int64_t stop, char* prepared) = nullptr;
};

// The tables, by the dtype of the tokens; null if there is none.
namespace avx512_bf16 { const LinearKernels* linear_kernels(Dtype tokens); }
namespace avx512 { const LinearKernels* linear_kernels(Dtype tokens); }
namespace avx2 { const LinearKernels* linear_kernels(Dtype tokens); }
namespace portable { const LinearKernels* linear_kernels(Dtype tokens); }

}  // namespace regard

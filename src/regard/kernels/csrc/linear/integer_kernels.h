// Linear layers with weights of few bits: what one instruction set offers for them (integer_kernels.cpp). The equations
// are in integer_products.h and integer_linear.h. The drivers are those of other weights: projection.cpp, linear.cpp.
#pragma once

#include "linear/linear_kernels.h"
#include "linear/projection_kernels.h"

namespace regard {

struct IntegerKernels {
    ProjectionKernels few;
    LinearKernels many;
};

// The tables, by the dtype of the tokens and the format of the weights, Dtype::int8 or Dtype::int4.
namespace avx512_amx_int8 { const IntegerKernels& integer_kernels(Dtype tokens, Dtype weight); }
namespace avx512_vnni { const IntegerKernels& integer_kernels(Dtype tokens, Dtype weight); }
namespace avx512 { const IntegerKernels& integer_kernels(Dtype tokens, Dtype weight); }
namespace avx2 { const IntegerKernels& integer_kernels(Dtype tokens, Dtype weight); }
namespace neon_dot { const IntegerKernels& integer_kernels(Dtype tokens, Dtype weight); }
namespace portable { const IntegerKernels& integer_kernels(Dtype tokens, Dtype weight); }

// That of the instruction set in use, with products of bytes where the processor has them and REGARD_ISA does not name an
// older set.
const IntegerKernels& integer_kernels_in_use(Dtype tokens, Dtype weight);

}  // namespace regard

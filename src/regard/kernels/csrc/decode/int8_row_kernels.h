// The kernels of one instruction set for keys and values that are rounded to int8 (stored_rows.h).
#pragma once

#include "decode/decode_kernels.h"

namespace regard {

struct Int8RowKernels {
    DecodeKernels decode;
    // Rounds a row of `width` numbers, in the dtype of the tokens.
    void (*quantize)(const void* from, int8_t* to, int64_t width);
};

// The tables, by the dtype of the tokens: float32 or bfloat16.
namespace avx512 { const Int8RowKernels& int8_row_kernels(Dtype tokens); }
namespace avx2 { const Int8RowKernels& int8_row_kernels(Dtype tokens); }
namespace portable { const Int8RowKernels& int8_row_kernels(Dtype tokens); }

// The table of the instruction set in use.
const Int8RowKernels& int8_row_kernels_in_use(Dtype tokens);

}  // namespace regard

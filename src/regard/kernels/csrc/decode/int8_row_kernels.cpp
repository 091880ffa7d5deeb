// The kernels for rows of int8, compiled once for each instruction set, as kernels.cpp is.
#include "decode/int8_row_kernels.h"

#include "decode/decode_chunk.h"
#include "decode/quantize_row.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class T>
static constexpr Int8RowKernels table = {decode_kernels<T, Softmax, int8_t>(), QuantizeRow<T>::run};

const Int8RowKernels& int8_row_kernels(Dtype tokens) {
    return tokens == Dtype::bfloat16 ? table<bfloat16> : table<float>;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

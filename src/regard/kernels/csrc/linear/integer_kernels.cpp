// The kernels of linear layers with weights of few bits, compiled once for each instruction set, as kernels.cpp is.
#include "linear/integer_kernels.h"

#include "linear/integer_linear.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class T, class W>
static constexpr IntegerKernels integer_table = {
    {IntegerLinear<T, W>::token_bytes, IntegerLinear<T, W>::pack, IntegerLinear<T, W>::project},
    {IntegerLinear<T, W>::stride, IntegerLinear<T, W>::height, (sizeof(TokenGroup) + integer_group - 1) / integer_group, 1,
     IntegerLinear<T, W>::scratch_bytes, IntegerLinear<T, W>::multiply, IntegerLinear<T, W>::token_bytes,
     IntegerLinear<T, W>::round_tokens}};

const IntegerKernels& integer_kernels(Dtype tokens, Dtype weight) {
    if (tokens == Dtype::bfloat16)
        return weight == Dtype::int8 ? integer_table<bfloat16, Int8Weights> : integer_table<bfloat16, Int4Weights>;
    return weight == Dtype::int8 ? integer_table<float, Int8Weights> : integer_table<float, Int4Weights>;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

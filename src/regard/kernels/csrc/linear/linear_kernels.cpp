// The kernels of linear layers of many tokens, compiled once for each instruction set, as kernels.cpp is.
#include "linear/linear_kernels.h"

#include "linear/linear.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
static constexpr LinearKernels linear_table = {Linear<A>::panel,
                                               192,
                                               sizeof(typename A::unit) / A::per_unit,
                                               A::per_unit,
                                               Linear<A>::scratch_bytes,
                                               Linear<A>::multiply,
                                               Linear<A>::widens ? Linear<A>::widened_bytes : nullptr,
                                               Linear<A>::widens ? Linear<A>::widen_tokens : nullptr};

const LinearKernels* linear_kernels(Dtype tokens) {
    if (tokens == Dtype::float32) return &linear_table<Float32>;
#if defined(__AVX512BF16__)
    if (tokens == Dtype::bfloat16) return &linear_table<Bfloat16>;
#else
    if (tokens == Dtype::bfloat16) return &linear_table<WidenedBfloat16>;
#endif
    return nullptr;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

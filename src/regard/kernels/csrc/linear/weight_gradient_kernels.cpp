// The gradients of the weights of linear layers, compiled once for each instruction set, as kernels.cpp is.
#include "linear/weight_gradient_kernels.h"

#include "linear/weight_gradient.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

const WeightGradientKernels& weight_gradient_kernels() {
    static constexpr WeightGradientKernels table = {WeightGradient::pack, WeightGradient::add_product};
    return table;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// The kernels of linear layers of few tokens, and of the sublayers around them, compiled once for each instruction set,
// as kernels.cpp is.
#include "linear/projection_kernels.h"

#include "decode/sublayer.h"
#include "linear/projection.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class T, class W>
static constexpr ProjectionKernels projection_table = {Projection<T, W>::packed_bytes, Projection<T, W>::pack,
                                                       TokenBlocks<Projection<T, W>>::project};

const ProjectionKernels& projection_kernels(Dtype tokens) {
    return tokens == Dtype::bfloat16 ? projection_table<bfloat16, Bfloat16Pairs> : projection_table<float, FloatWeights>;
}

template <class T>
static constexpr SublayerKernels sublayer_table = {SublayerFunctions<T>::normalize, SublayerFunctions<T>::activate,
                                                   SublayerFunctions<T>::differentiate, SublayerFunctions<T>::add, SublayerFunctions<T>::rotate};

const SublayerKernels& sublayer_kernels(Dtype tokens) {
    return tokens == Dtype::bfloat16 ? sublayer_table<bfloat16> : sublayer_table<float>;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

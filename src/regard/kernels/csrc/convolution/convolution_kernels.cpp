// The kernels of convolutions of tokens, compiled once for each instruction set, as kernels.cpp is.
#include "convolution/convolution_kernels.h"

#include "convolution/token_convolution.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
static constexpr ConvolutionKernels convolution_table = {
    TokenConvolution<A>::scratch,        TokenConvolution<A>::convolve,
    TokenConvolution<A>::filter_scratch, TokenConvolution<A>::differentiate_filter,
    TokenConvolution<A>::join_filter,
};

const ConvolutionKernels& convolution_kernels(Dtype dtype) {
    return dtype == Dtype::float64 ? convolution_table<Float64> : convolution_table<Float32>;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

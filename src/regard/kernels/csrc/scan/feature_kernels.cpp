// The kernels of attention by features, compiled once for each instruction set, as kernels.cpp is.
#include "scan/feature_kernels.h"

#include "scan/feature_backward.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
static constexpr FeatureKernels feature_table = {
    FeatureAttention<A>::projection_bytes, FeatureAttention<A>::pack_projection, FeatureAttention<A>::scratch,
    FeatureAttention<A>::sums_bytes,       FeatureAttention<A>::clear,           FeatureAttention<A>::copy,
    FeatureAttention<A>::sum_keys,         FeatureAttention<A>::join,            FeatureAttention<A>::attend,
    FeatureAttention<A>::attend_causally,  FeatureBackward<A>::read_sums,        FeatureBackward<A>::query_gradients,
    FeatureBackward<A>::join_gradients,
    FeatureBackward<A>::key_gradients,     FeatureBackward<A>::saved_bytes,     FeatureBackward<A>::causal_gradients,
};

const FeatureKernels& feature_kernels(Dtype dtype) {
    return dtype == Dtype::float64 ? feature_table<Float64> : feature_table<Float32>;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

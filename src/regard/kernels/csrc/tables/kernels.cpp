// The table of kernels, compiled once for each instruction set, with its flags and its REGARD_ISA_NAMESPACE.
#include "tables/kernel_table.h"

#include "additive/additive_backward.h"
#include "additive/additive_forward.h"
#include "attention/forward.h"
#include "attention/sigmoid_forward.h"
#include "decode/decode_chunk.h"
#include "linear/dropout.h"
#include "losses/cross_entropy.h"
#include "losses/likeliest_class.h"
#include "scan/scan.h"
#include "scan/scan_backward.h"
#include "tables/throughput_probe.h"
#include "tables/tile_tables.h"
#include "talking_heads/talking_heads_backward.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
constexpr ScanKernels scan_kernels() {
    ScanKernels k = {};
    k.columns = lanes<typename A::number>;
    k.forward_scratch = Scan<A>::forward_scratch;
    k.forward = Scan<A>::forward;
    k.saved_bytes = ScanBackward<A>::saved_bytes;
    k.backward_scratch = ScanBackward<A>::scratch;
    k.states = ScanBackward<A>::states;
    k.reverse = ScanBackward<A>::reverse;
    k.gradients = ScanBackward<A>::gradients;
    return k;
}

// A: the type in which products are computed. Additive: the type in which additive attention, talking heads and scans are computed. T: the dtype of the arrays, for kernels that do
// not pack.
template <class A, class Additive, class T>
constexpr KernelTable kernel_table() {
    KernelTable t = {};
    t.dot_product = tile_kernels<A, PackKeys<A>, Forward<A>, Backward<A>>();
    t.sigmoid = tile_kernels<A, PackKeys<A>, SigmoidForward<A>, Backward<A, Sigmoid>>();
    t.additive = tile_kernels<Additive, PackAdditive<Additive>, AdditiveForward<Additive>, AdditiveBackward<Additive>>();
    t.decode = decode_kernels<T, Softmax>();
    t.sigmoid_decode = decode_kernels<T, Sigmoid>();
    t.count_visible_keys = VisibleKeys::count;
    t.observe = observe_kernels<A>();
    t.dropout = {Dropout<T>::run};
    t.cross_entropy = {CrossEntropy<T>::forward, CrossEntropy<T>::backward};
    t.likeliest = {LikeliestClass<T>::find};
    t.scan = scan_kernels<Additive>();
    t.talking_heads = talking_heads_kernels<Additive>();
    t.probe = {ThroughputProbe<A>::bytes, ThroughputProbe<A>::products, ThroughputProbe<A>::run};
    return t;
}

#if defined(__AVX512BF16__)

// Compared with AVX-512, this set adds only instructions for bfloat16.
static constexpr KernelTable bfloat16_kernels = kernel_table<Bfloat16, Float32, bfloat16>();

const KernelTable* kernels(Dtype dtype) { return dtype == Dtype::bfloat16 ? &bfloat16_kernels : avx512::kernels(dtype); }

#else

static constexpr KernelTable float32_kernels = kernel_table<Float32, Float32, float>();
static constexpr KernelTable float64_kernels = kernel_table<Float64, Float64, double>();
static constexpr KernelTable bfloat16_kernels = kernel_table<Float32, Float32, bfloat16>();
static constexpr KernelTable float16_kernels = kernel_table<Float32, Float32, float16>();

const KernelTable* kernels(Dtype dtype) {
    switch (dtype) {
        case Dtype::float32: return &float32_kernels;
        case Dtype::float64: return &float64_kernels;
        case Dtype::bfloat16: return &bfloat16_kernels;
        case Dtype::float16: return &float16_kernels;
        default: return nullptr;
    }
}

#endif

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

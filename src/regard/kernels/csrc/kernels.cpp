// Compiled once for each instruction set, with its flags and REGARD_ISA_NAMESPACE: the kernels in that set, as a table.
#include "kernel_table.h"

#include "additive_backward.h"
#include "additive_forward.h"
#include "backward.h"
#include "decode_chunk.h"
#include "cross_entropy.h"
#include "dropout.h"
#include "forward.h"
#include "observe.h"
#include "throughput_probe.h"

#define REGARD_TEXT(x) #x
#define REGARD_NAME(x) REGARD_TEXT(x)

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// What is null here is never called for additive attention.
template <class A>
constexpr Kernels additive_table() {
    Kernels k = {};
    k.isa = REGARD_NAME(REGARD_ISA_NAMESPACE);
    k.key_bytes = PackAdditive<A>::key_bytes;
    k.value_bytes = PackKeys<A>::value_bytes;
    k.pack_scratch = PackAdditive<A>::scratch;
    k.pack_keys = PackAdditive<A>::pack;
    k.forward_scratch = AdditiveForward<A>::scratch;
    k.forward = AdditiveForward<A>::run;
    k.backward_sizes = AdditiveBackward<A>::sizes;
    k.backward_pack_keys = AdditiveBackward<A>::pack_keys;
    k.backward_pack_queries = AdditiveBackward<A>::pack_queries;
    k.backward_prepare_queries = AdditiveBackward<A>::prepare_queries;
    k.backward = AdditiveBackward<A>::run;
    k.backward_finish_queries = Backward<A>::finish_queries;
    return k;
}

// A: what products are computed in; T: the dtype of the arrays, for the kernels that read them as they lie.
template <class A, class T>
constexpr Kernels table(const Kernels* additive) {
    Kernels k = {};
    k.isa = REGARD_NAME(REGARD_ISA_NAMESPACE);
    k.additive = additive;
    k.key_bytes = PackKeys<A>::key_bytes;
    k.value_bytes = PackKeys<A>::value_bytes;
    k.pack_scratch = PackKeys<A>::scratch;
    k.pack_keys = PackKeys<A>::pack;
    k.forward_scratch = Forward<A>::scratch;
    k.forward = Forward<A>::run;
    k.backward_sizes = Backward<A>::sizes;
    k.backward_pack_keys = Backward<A>::pack_keys;
    k.backward_pack_queries = Backward<A>::pack_queries;
    k.backward_prepare_queries = Backward<A>::prepare_queries;
    k.backward = Backward<A>::run;
    k.backward_finish_queries = Backward<A>::finish_queries;
    k.decode_partial_bytes = PartialSoftmax<T>::bytes;
    k.decode_scratch = Decode<T>::scratch;
    k.decode_chunk = Decode<T>::run;
    k.decode_join = Decode<T>::join;
    typedef Observe<A> Observing;
    k.normal_bytes = Observing::normal_bytes;
    k.received_tiles = Observing::received_tiles;
    k.observe_scratch = Observing::scratch;
    k.observe = Observing::run;
    k.received_scratch = Observing::received_scratch;
    k.observe_received = Observing::received;
    k.row_scratch = Observing::row_scratch;
    k.observe_row = Observing::row;
    k.multiply_bytes = ThroughputProbe<A>::bytes;
    k.products = ThroughputProbe<A>::products;
    k.multiply = ThroughputProbe<A>::run;
    k.dropout = Dropout<T>::run;
    k.cross_entropy = CrossEntropy<T>::forward;
    k.cross_entropy_backward = CrossEntropy<T>::backward;
    return k;
}

static constexpr Kernels float32_additive_kernels = additive_table<Float32>();

#if defined(__AVX512BF16__)

// All that this set has beyond AVX-512 is for bfloat16.
static constexpr Kernels bfloat16_kernels = table<Bfloat16, bfloat16>(&float32_additive_kernels);

const Kernels* kernels(Dtype dtype) { return dtype == Dtype::bfloat16 ? &bfloat16_kernels : avx512::kernels(dtype); }

#else

static constexpr Kernels float64_additive_kernels = additive_table<Float64>();
static constexpr Kernels float32_kernels = table<Float32, float>(&float32_additive_kernels);
static constexpr Kernels float64_kernels = table<Float64, double>(&float64_additive_kernels);
static constexpr Kernels bfloat16_kernels = table<Float32, bfloat16>(&float32_additive_kernels);
static constexpr Kernels float16_kernels = table<Float32, float16>(&float32_additive_kernels);

const Kernels* kernels(Dtype dtype) {
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

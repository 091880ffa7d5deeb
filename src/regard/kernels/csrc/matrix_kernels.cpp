// The kernels for the matrix unit of the processor, of softmax attention in bfloat16; all others are those of AVX-512.
#include "kernel_table.h"

#include "backward.h"
#include "matrix_forward.h"
#include "observe.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// A kernel that holds the matrix unit while it runs.
template <auto kernel>
struct Holding;
template <class... Arguments, void (*kernel)(Arguments...)>
struct Holding<kernel> {
    static void run(Arguments... arguments) {
        const MatrixUnit held;
        kernel(arguments...);
    }
};

typedef Bfloat16Matrices A;

static TileKernels tile_kernels() {
    typedef Backward<A> BackwardPass;
    TileKernels k = {};
    k.key_bytes = PackKeys<A>::key_bytes;
    k.value_bytes = PackKeys<A>::value_bytes;
    k.pack_scratch = PackKeys<A>::scratch;
    k.pack_keys = PackKeys<A>::pack;
    k.forward_scratch = MatrixForward<A>::scratch;
    k.forward = Holding<MatrixForward<A>::run>::run;
    k.backward_sizes = BackwardPass::sizes;
    k.backward_pack_keys = BackwardPass::pack_keys;
    k.backward_pack_queries = Holding<BackwardPass::pack_queries>::run;
    k.backward_prepare_queries = Holding<BackwardPass::prepare_queries>::run;
    k.backward = Holding<BackwardPass::run>::run;
    k.backward_finish_queries = BackwardPass::finish_queries;
    return k;
}

static ObserveKernels observe_kernels() {
    typedef Observe<A, MatrixForward> Observing;
    ObserveKernels k = {};
    k.normal_bytes = Observing::normal_bytes;
    k.received_tiles = Observing::received_tiles;
    k.scratch = Observing::scratch;
    k.forward = Holding<Observing::run>::run;
    k.received_scratch = Observing::received_scratch;
    k.received = Holding<Observing::received>::run;
    k.row_scratch = Observing::row_scratch;
    k.row = Holding<Observing::row>::run;
    return k;
}

const KernelTable* kernels(Dtype dtype) {
    if (dtype != Dtype::bfloat16) return avx512::kernels(dtype);
    static const KernelTable table = [] {
        KernelTable t = *avx512::kernels(Dtype::bfloat16);
        t.dot_product = tile_kernels();
        t.observe = observe_kernels();
        return t;
    }();
    return &table;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

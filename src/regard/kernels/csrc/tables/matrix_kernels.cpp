// The kernels for the matrix unit of the processor, of softmax attention in bfloat16; all others are those of AVX-512.
#include "attention/matrix_forward.h"
#include "tables/tile_tables.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

const KernelTable* kernels(Dtype dtype) {
    if (dtype != Dtype::bfloat16) return avx512::kernels(dtype);
    static const KernelTable table = [] {
        typedef Bfloat16Matrices A;
        KernelTable t = *avx512::kernels(Dtype::bfloat16);
        t.dot_product = tile_kernels<A, PackKeys<A>, MatrixForward<A>, Backward<A>>();
        t.observe = observe_kernels<A, MatrixForward>();
        return t;
    }();
    return &table;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// The choice of the kernels of linear layers with weights of few bits. VNNI came to processors with and without products of
// bfloat16 pairs, so it is no instruction set of its own here.
#include "linear/integer_kernels.h"
#include "tables/table_in_use.h"

namespace regard {

const IntegerKernels& integer_kernels_in_use(Dtype tokens, Dtype weight) {
#if REGARD_HAS_avx512_vnni
    if (uses_vnni()) return avx512_vnni::integer_kernels(tokens, weight);
#endif
    REGARD_RETURN_TABLE(integer_kernels(tokens, weight));
}

}  // namespace regard

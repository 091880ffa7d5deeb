// The choice of the kernels of linear layers with weights of few bits.
#include "linear/byte_products.h"
#include "linear/integer_kernels.h"
#include "tables/table_in_use.h"

namespace regard {

const IntegerKernels& integer_kernels_in_use(Dtype tokens, Dtype weight) {
#if REGARD_HAS_avx512_amx_int8
    if (uses_byte_matrices()) return avx512_amx_int8::integer_kernels(tokens, weight);
#endif
#if REGARD_HAS_avx512_vnni
    if (uses_vnni()) return avx512_vnni::integer_kernels(tokens, weight);
#endif
#if REGARD_HAS_neon_dot
    if (uses_dot_products()) return neon_dot::integer_kernels(tokens, weight);
#endif
    REGARD_RETURN_TABLE(integer_kernels(tokens, weight));
}

}  // namespace regard

// The tables of the instruction set in use, for hash buckets.
#include "bucket_kernels.h"
#include "cpu.h"

namespace regard {

// Compared with AVX-512, AVX512_BF16 adds nothing here: numbers are float32 or float64.
const HashKernels& hash_kernels_in_use() {
#if REGARD_HAS_avx512
    if (chosen_isa() >= Isa::avx512) return avx512::hash_kernels();
#endif
#if REGARD_HAS_avx2
    if (chosen_isa() == Isa::avx2) return avx2::hash_kernels();
#endif
    return portable::hash_kernels();
}

const RowKernels& row_kernels_for(Dtype dtype) {
#if REGARD_HAS_avx512
    if (chosen_isa() >= Isa::avx512) return avx512::row_kernels(dtype);
#endif
#if REGARD_HAS_avx2
    if (chosen_isa() == Isa::avx2) return avx2::row_kernels(dtype);
#endif
    return portable::row_kernels(dtype);
}

}  // namespace regard

// The tables of the instruction set in use, for attention to chosen keys.
#include "cpu.h"
#include "selection_kernels.h"

namespace regard {

// Compared with AVX-512, AVX512_BF16 adds nothing here: products are in float32 or float64.
const GatheredKernels& gathered_kernels_for(Dtype dtype) {
#if REGARD_HAS_avx512
    if (chosen_isa() >= Isa::avx512) return avx512::gathered_kernels(dtype);
#endif
#if REGARD_HAS_avx2
    if (chosen_isa() == Isa::avx2) return avx2::gathered_kernels(dtype);
#endif
    return portable::gathered_kernels(dtype);
}

const ChoiceKernels& choice_kernels_in_use() {
#if REGARD_HAS_avx512
    if (chosen_isa() >= Isa::avx512) return avx512::choice_kernels();
#endif
#if REGARD_HAS_avx2
    if (chosen_isa() == Isa::avx2) return avx2::choice_kernels();
#endif
    return portable::choice_kernels();
}

const ChosenKernels& chosen_kernels_for(Dtype dtype) {
#if REGARD_HAS_avx512
    if (chosen_isa() >= Isa::avx512) return avx512::chosen_kernels(dtype);
#endif
#if REGARD_HAS_avx2
    if (chosen_isa() == Isa::avx2) return avx2::chosen_kernels(dtype);
#endif
    return portable::chosen_kernels(dtype);
}

const ImportanceKernels& importance_kernels_in_use() {
#if REGARD_HAS_avx512
    if (chosen_isa() >= Isa::avx512) return avx512::importance_kernels();
#endif
#if REGARD_HAS_avx2
    if (chosen_isa() == Isa::avx2) return avx2::importance_kernels();
#endif
    return portable::importance_kernels();
}

}  // namespace regard

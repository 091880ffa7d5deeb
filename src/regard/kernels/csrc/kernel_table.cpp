// The table of kernels of the instruction set in use.
#include "kernel_table.h"

#include "cpu.h"

namespace regard {

const KernelTable& kernels_for(Dtype dtype) {
#if REGARD_HAS_avx512_amx
    if (chosen_isa() == Isa::avx512_amx) return *avx512_amx::kernels(dtype);
#endif
#if REGARD_HAS_avx512_bf16
    if (chosen_isa() == Isa::avx512_bf16) return *avx512_bf16::kernels(dtype);
#endif
#if REGARD_HAS_avx512
    if (chosen_isa() == Isa::avx512) return *avx512::kernels(dtype);
#endif
#if REGARD_HAS_avx2
    if (chosen_isa() == Isa::avx2) return *avx2::kernels(dtype);
#endif
    return *portable::kernels(dtype);
}

}  // namespace regard

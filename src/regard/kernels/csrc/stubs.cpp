// Stand-ins until each driver is written; weak, so that a driver's own definition takes their place. To be deleted.
#include <stdexcept>

#include "cpu.h"
#include "drivers.h"
#include "isa.h"

namespace regard {

#define REGARD_MISSING { throw std::logic_error("this operation is not written yet"); }
__attribute__((weak)) void forward(const Problem&, const Array&, const Array&, int) REGARD_MISSING
__attribute__((weak)) void backward(const Problem&, const Array&, const Array&, const Gradients&, int) REGARD_MISSING
__attribute__((weak)) void observe(const Problem&, const Array&, const Array&, const Statistics&, int) REGARD_MISSING
__attribute__((weak)) void paged(const Problem&, const Pages&, const Array&, const Array&, int) REGARD_MISSING
__attribute__((weak)) void additive_forward(const Problem&, const Additive&, const Array&, const Array&, int) REGARD_MISSING
__attribute__((weak)) void additive_backward(const Problem&, const Additive&, const Array&, const Array&, const AdditiveGradients&, int) REGARD_MISSING

// The best table that this build has, at or below the instruction set in use.
__attribute__((weak)) const Kernels& kernels_for(Dtype dtype) {
#if REGARD_HAS_avx512_bf16
    if (chosen_isa() == Isa::avx512_bf16) return *avx512_bf16::kernels(dtype);
    if (chosen_isa() == Isa::avx512) return *avx512::kernels(dtype);
    if (chosen_isa() == Isa::avx2) return *avx2::kernels(dtype);
#endif
    return *portable::kernels(dtype);
}

}  // namespace regard

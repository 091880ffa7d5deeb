// A linear layer of few tokens: a task computes a block of outputs, which reads as much of the weights as a thread does
// in some microseconds.
#include <algorithm>

#include "cpu.h"
#include "parallel.h"
#include "projection_kernels.h"

namespace regard {

namespace {

constexpr int64_t weights_per_task = 1 << 16;
constexpr int64_t outputs_multiple = 4;  // rows of weights that kernels read side by side

const ProjectionKernels& kernels_in_use(Dtype tokens, Dtype weight) {
#if REGARD_HAS_avx512_bf16
    if (chosen_isa() == Isa::avx512_bf16) return avx512_bf16::projection_kernels(tokens, weight);
#endif
#if REGARD_HAS_avx512
    if (chosen_isa() == Isa::avx512) return avx512::projection_kernels(tokens, weight);
#endif
#if REGARD_HAS_avx2
    if (chosen_isa() == Isa::avx2) return avx2::projection_kernels(tokens, weight);
#endif
    return portable::projection_kernels(tokens, weight);
}

}  // namespace

void project(const ProjectionArguments& given, int threads) {
    if (given.rows == 0 || given.outputs == 0) return;
    const ProjectionKernels& kernels = kernels_in_use(given.tokens.dtype, given.weight.dtype);
    const auto each = static_cast<int64_t>(kernels.packed_bytes(given.inputs));
    const Scratch packed = Scratch::of<char>({given.rows, each});
    for (int64_t row = 0; row < given.rows; ++row) kernels.pack(given, row, packed.as<char>() + row * each);
    const int64_t rows_of_weights = ceil_div(weights_per_task, std::max<int64_t>(given.inputs, 1));
    const int64_t in_task = ceil_div(rows_of_weights, outputs_multiple) * outputs_multiple;
    parallel_for(ceil_div(given.outputs, in_task), threads, [&](int64_t task, int) {
        kernels.project(given, packed.as<char>(), task * in_task, std::min((task + 1) * in_task, given.outputs));
    });
}

}  // namespace regard

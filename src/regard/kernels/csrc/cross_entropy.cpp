// Cross-entropy: a task computes a block of rows of logits.
#include "drivers.h"
#include "kernel_table.h"
#include "parallel.h"

namespace regard {

namespace {

constexpr int64_t logits_per_task = 16384;  // approximate; smaller tasks would cost more than a thread saves

template <class Work>
void for_rows(const CrossEntropyArguments& arguments, int threads, Work&& work) {
    const int64_t in_task = ceil_div(logits_per_task, arguments.classes);
    parallel_for(ceil_div(arguments.rows, in_task), threads, [&](int64_t task, int) {
        const int64_t stop = (task + 1) * in_task < arguments.rows ? (task + 1) * in_task : arguments.rows;
        for (int64_t row = task * in_task; row < stop; ++row) work(row);
    });
}

}  // namespace

void cross_entropy(const CrossEntropyArguments& arguments, const CrossEntropyResults& results, int threads) {
    const CrossEntropyKernels& k = kernels_for(arguments.logits.dtype).cross_entropy;
    for_rows(arguments, threads, [&](int64_t row) { k.forward(arguments, results, row); });
}

void cross_entropy_backward(const CrossEntropyArguments& arguments, const CrossEntropyGradients& gradients,
                            int threads) {
    const CrossEntropyKernels& k = kernels_for(arguments.logits.dtype).cross_entropy;
    for_rows(arguments, threads, [&](int64_t row) { k.backward(arguments, gradients, row); });
}

}  // namespace regard

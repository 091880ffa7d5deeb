// Cross-entropy: a task computes a block of rows of logits.
#include "drivers.h"
#include "kernel_table.h"
#include "parallel.h"

namespace regard {

namespace {

constexpr int64_t logits_per_task = 16384;  // logits in a task, about: less would not be worth another thread

template <class Work>
void for_rows(const CrossEntropyArguments& given, int threads, Work&& work) {
    const int64_t in_task = ceil_div(logits_per_task, given.classes);
    parallel_for(ceil_div(given.rows, in_task), threads, [&](int64_t task, int) {
        const int64_t stop = (task + 1) * in_task < given.rows ? (task + 1) * in_task : given.rows;
        for (int64_t row = task * in_task; row < stop; ++row) work(row);
    });
}

}  // namespace

void cross_entropy(const CrossEntropyArguments& given, const CrossEntropyResults& results, int threads) {
    const CrossEntropyKernels& k = kernels_for(given.logits.dtype).cross_entropy;
    for_rows(given, threads, [&](int64_t row) { k.forward(given, results, row); });
}

void cross_entropy_backward(const CrossEntropyArguments& given, const CrossEntropyGradients& gradients, int threads) {
    const CrossEntropyKernels& k = kernels_for(given.logits.dtype).cross_entropy;
    for_rows(given, threads, [&](int64_t row) { k.backward(given, gradients, row); });
}

}  // namespace regard

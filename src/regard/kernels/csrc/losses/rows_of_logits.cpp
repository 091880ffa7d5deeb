// Cross-entropy, and the likeliest class: a task computes a block of rows of logits.
#include "drivers.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"

namespace regard {

namespace {

constexpr int64_t logits_per_task = 16384;  // approximate; smaller tasks would cost more than a thread saves

template <class Work>
void for_rows(int64_t rows, int64_t classes, int threads, Work&& work) {
    const int64_t in_task = ceil_div(logits_per_task, classes);
    parallel_for(ceil_div(rows, in_task), threads, [&](int64_t task, int) {
        const int64_t stop = (task + 1) * in_task < rows ? (task + 1) * in_task : rows;
        for (int64_t row = task * in_task; row < stop; ++row) work(row);
    });
}

}  // namespace

void cross_entropy(const CrossEntropyArguments& arguments, const CrossEntropyResults& results, int threads) {
    const CrossEntropyKernels& k = kernels_in_use(arguments.logits.dtype).cross_entropy;
    for_rows(arguments.rows, arguments.classes, threads, [&](int64_t row) { k.forward(arguments, results, row); });
}

void cross_entropy_backward(const CrossEntropyArguments& arguments, const CrossEntropyGradients& gradients,
                            int threads) {
    const CrossEntropyKernels& k = kernels_in_use(arguments.logits.dtype).cross_entropy;
    for_rows(arguments.rows, arguments.classes, threads, [&](int64_t row) { k.backward(arguments, gradients, row); });
}

void likeliest_class(const LikeliestArguments& arguments, const LikeliestResults& results, int threads) {
    const LikeliestKernels& k = kernels_in_use(arguments.logits.dtype).likeliest;
    for_rows(arguments.rows, arguments.classes, threads, [&](int64_t row) { k.find(arguments, results, row); });
}

}  // namespace regard

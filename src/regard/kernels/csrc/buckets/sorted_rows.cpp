// Copies between tokens and their places: each block of rows of a (batch, head) is one task.
#include <algorithm>

#include "buckets/bucket_kernels.h"
#include "runtime/parallel.h"
#include "tables/table_in_use.h"

namespace regard {

namespace {

const RowKernels& row_kernels_in_use(Dtype dtype) { REGARD_RETURN_TABLE(row_kernels(dtype)); }

// Runs a kernel for the rows of all (batch, head) of `of`, the array that is written.
template <class Given>
void for_rows(void (*kernel)(const Given&, int64_t, int64_t, int64_t, int64_t), const Given& given, const Array& of,
              int threads) {
    const int64_t heads = of.shape[1], rows = of.shape[2], blocks = ceil_div(rows, rows_block);
    parallel_for(of.shape[0] * heads * blocks, threads, [&](int64_t task, int) {
        const int64_t group = task / blocks, first = task % blocks * rows_block;
        kernel(given, group / heads, group % heads, first, std::min(first + rows_block, rows));
    });
}

}  // namespace

void divide_rows(const DividedRows& given, int threads) {
    for_rows(row_kernels_in_use(given.rows.dtype).divide_rows, given, given.divided, threads);
}

void sort_gradients(const SortedGradients& given, int threads) {
    for_rows(row_kernels_in_use(given.output.dtype).sort_gradients, given, given.sorted_normalizer, threads);
}

void merge_rounds(const MergedRounds& given, int threads) {
    for_rows(row_kernels_in_use(given.output.dtype).merge, given, given.normalizer, threads);
}

void add_rows(const AddedRows& given, int threads) {
    for_rows(row_kernels_in_use(given.into.dtype).add, given, given.into, threads);
}

}  // namespace regard

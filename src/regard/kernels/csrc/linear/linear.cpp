// A linear layer of many tokens: a task computes a panel of outputs of a block of rows (see linear.h).
#include <algorithm>

#include "linear/integer_kernels.h"
#include "linear/linear_kernels.h"
#include "runtime/parallel.h"
#include "tables/table_in_use.h"

namespace regard {

namespace {

// Each block may pack the panels of the weight anew, which takes a hundredth of its time from this number of rows on.
constexpr int64_t most_rows = 1024;
// Bytes of the tokens of a block: all panels read them, one after the other.
constexpr int64_t block_bytes = 8 << 20;
constexpr int64_t tasks_per_thread = 4;
constexpr int64_t rows_multiple = 48;  // as many as are multiplied together
constexpr int64_t prepared_rows = 16;  // of a task

const LinearKernels* linear_kernels_in_use(Dtype tokens) { REGARD_RETURN_TABLE_WITH_BF16(linear_kernels(tokens)); }

// Rows of a block: few enough for a task for each thread, and for the cache.
int64_t choose_block_rows(const LinearArguments& given, const LinearKernels& kernels, int64_t panels, int threads) {
    const int64_t row_bytes = std::max<int64_t>(given.inputs, 1) * kernels.number_bytes;
    const int64_t for_threads = ceil_div(given.rows, ceil_div(tasks_per_thread * threads, panels));
    const int64_t most = std::max(std::min({for_threads, block_bytes / row_bytes, most_rows}), kernels.least_rows);
    const int64_t equal = ceil_div(given.rows, ceil_div(given.rows, most));
    return ceil_div(equal, rows_multiple) * rows_multiple;
}

}  // namespace

int64_t linear_unit(Dtype dtype) {
    const LinearKernels* kernels = linear_kernels_in_use(dtype);
    return kernels == nullptr ? 0 : kernels->per_unit;
}

void linear(const LinearArguments& given, int threads) {
    if (given.rows == 0 || given.outputs == 0) return;
    const LinearKernels& kernels = given.weight.dtype == given.tokens.dtype
                                       ? *linear_kernels_in_use(given.tokens.dtype)
                                       : integer_kernels_in_use(given.tokens.dtype, given.weight.dtype).many;
    LinearArguments multiplied = given;
    Scratch prepared;
    if (kernels.prepare_tokens != nullptr) {
        prepared = Scratch::of<char>({given.rows, static_cast<int64_t>(kernels.token_bytes(given.inputs))});
        multiplied.tokens.data = prepared.as<char>();
        parallel_for(ceil_div(given.rows, prepared_rows), threads, [&](int64_t task, int) {
            const int64_t row = task * prepared_rows;
            kernels.prepare_tokens(given, row, std::min(row + prepared_rows, given.rows), prepared.as<char>());
        });
    }
    const int64_t panels = ceil_div(given.outputs, kernels.panel);
    const int64_t block = choose_block_rows(given, kernels, panels, threads);
    const ScratchParts scratch(threads, kernels.scratch_bytes(given.inputs));
    parallel_for_owned(panels * ceil_div(given.rows, block), threads, [&](int64_t task, int thread) {
        const int64_t row = task / panels * block;
        kernels.multiply(multiplied, task % panels * kernels.panel, row, std::min(row + block, given.rows),
                         scratch[thread]);
    });
}

}  // namespace regard

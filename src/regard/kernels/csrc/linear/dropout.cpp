// Dropout of an array: a task computes a block of elements.
#include "drivers.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"

namespace regard {

void dropout(const DropoutArguments& dropout_arguments, int threads) {
    const DropoutKernels& k = kernels_in_use(dropout_arguments.tokens.dtype).dropout;
    const int64_t blocks = ceil_div(dropout_arguments.count, dropout_block);
    parallel_for(blocks, threads, [&](int64_t block, int) { k.block(dropout_arguments, block); });
}

}  // namespace regard

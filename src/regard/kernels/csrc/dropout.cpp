// Dropout of an array: a block of numbers is a task.
#include "drivers.h"
#include "kernel_table.h"
#include "parallel.h"

namespace regard {

void dropout(const Dropping& dropping, int threads) {
    const Kernels& k = kernels_for(dropping.tokens.dtype);
    const int64_t blocks = divided_up(dropping.count, dropped_together);
    parallel_for(blocks, threads, [&](int64_t block, int) { k.dropout(dropping, block); });
}

}  // namespace regard

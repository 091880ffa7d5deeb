// The gradients of the weights of a linear layer: for each block of rows, a task packs 64 columns, and then a task
// multiplies a pair of packed columns (see weight_gradient.h).
#include <string.h>

#include <algorithm>

#include "parallel.h"
#include "table_in_use.h"
#include "weight_gradient_kernels.h"

namespace regard {

namespace {

// Each block of rows reads and writes all sums. If those fit the second cache, so do short blocks; else blocks are longer,
// so that the sums pass through the cache less often.
int64_t choose_block_rows(int64_t sums) { return sums <= (int64_t{1} << 19) ? 128 : 512; }

const WeightGradientKernels& kernels_in_use() { REGARD_RETURN_TABLE(weight_gradient_kernels()); }

}  // namespace

void weight_gradient(const WeightGradientArguments& given, int threads) {
    const WeightGradientKernels& kernels = kernels_in_use();
    const int64_t of_inputs = ceil_div(given.inputs, tile), of_outputs = ceil_div(given.outputs, tile);
    const int64_t block_rows = choose_block_rows(of_inputs * of_outputs * tile * tile);
    const Scratch packed = Scratch::of<float>({of_inputs + of_outputs, block_rows, tile});
    const Scratch products = Scratch::of<float>({of_outputs, of_inputs, tile, tile});
    const Scratch columns = Scratch::of<float>({of_outputs, tile});
    memset(products.as<char>(), 0, products.bytes());
    memset(columns.as<char>(), 0, columns.bytes());
    float *left = packed.as<float>(), *right = left + of_outputs * block_rows * tile;
    for (int64_t row = 0; row < given.rows; row += block_rows) {
        const int64_t count = std::min(block_rows, given.rows - row);
        parallel_for(of_outputs + of_inputs, threads, [&](int64_t task, int) {
            float* to = left + task * block_rows * tile;
            if (task < of_outputs)
                kernels.pack(given.gradient, row, count, task * tile, to, columns.as<float>() + task * tile);
            else
                kernels.pack(given.tokens, row, count, (task - of_outputs) * tile, to, nullptr);
        });
        parallel_for(of_outputs * of_inputs, threads, [&](int64_t task, int) {
            kernels.add_product(left + task / of_inputs * block_rows * tile, right + task % of_inputs * block_rows * tile,
                                count, products.as<float>() + task * tile * tile);
        });
    }
    auto* to = static_cast<float*>(given.of_weight.data);
    parallel_for(given.outputs, threads, [&](int64_t output, int) {
        for (int64_t first = 0; first < given.inputs; first += tile) {
            const float* from = products.as<float>() + ((output / tile * of_inputs + first / tile) * tile + output % tile) * tile;
            memcpy(to + output * given.inputs + first, from,
                   sizeof(float) * static_cast<size_t>(std::min(tile, given.inputs - first)));
        }
    });
    if (given.of_bias && given.outputs > 0)
        memcpy(given.of_bias.data, columns.as<char>(), sizeof(float) * static_cast<size_t>(given.outputs));
}

}  // namespace regard

// The gradients of the weights of a linear layer: for a block of rows and a group of outputs, a task packs 64 columns, and
// then a task multiplies a pair of packed columns (see weight_gradient.h).
#include <string.h>

#include <algorithm>

#include "linear/weight_gradient_kernels.h"
#include "runtime/parallel.h"
#include "tables/table_in_use.h"

namespace regard {

namespace {

// Packed tokens of a block, and packed gradients of a group of outputs: both stay in the cache while they are multiplied.
constexpr int64_t block_bytes = 4 << 20, group_bytes = 1 << 20;
constexpr int64_t least_rows = 512, rows_multiple = 256;
constexpr int64_t tasks_per_thread = 8;
constexpr int64_t tile_row_bytes = tile * static_cast<int64_t>(sizeof(float));

const WeightGradientKernels& weight_gradient_kernels_in_use() { REGARD_RETURN_TABLE(weight_gradient_kernels()); }

// Sets the numbers of dW that a task computed, or adds them to those of the blocks of rows before.
void write_sums(const float* sums, const WeightGradientArguments& given, int64_t output, int64_t input, bool adds) {
    const int64_t outputs = std::min(given.outputs - output, tile), inputs = std::min(given.inputs - input, tile);
    for (int64_t o = 0; o < outputs; ++o, sums += tile) {
        float* to = static_cast<float*>(given.of_weight.data) + (output + o) * given.inputs + input;
        if (adds)
            for (int64_t i = 0; i < inputs; ++i) to[i] += sums[i];
        else
            memcpy(to, sums, sizeof(float) * static_cast<size_t>(inputs));
    }
}

}  // namespace

void weight_gradient(const WeightGradientArguments& given, int threads) {
    if (given.outputs == 0) return;
    const WeightGradientKernels& kernels = weight_gradient_kernels_in_use();
    const int64_t of_inputs = ceil_div(given.inputs, tile), of_outputs = ceil_div(given.outputs, tile);
    const int64_t in_cache = block_bytes / (std::max<int64_t>(of_inputs, 1) * tile_row_bytes);
    const int64_t block = std::max(in_cache / rows_multiple * rows_multiple, least_rows);
    const int64_t packed_rows = std::max<int64_t>(std::min(block, given.rows), 1);
    const int64_t for_threads = ceil_div(tasks_per_thread * threads, std::max<int64_t>(of_inputs, 1));
    const int64_t for_cache = group_bytes / (packed_rows * tile_row_bytes);
    const int64_t group = std::min(std::max({for_threads, for_cache, int64_t{1}}), of_outputs);
    const Scratch packed = Scratch::of<float>({of_inputs + group, packed_rows, tile});
    const Scratch sums = Scratch::of<float>({threads, tile * tile}), columns = Scratch::of<float>({of_outputs, tile});
    memset(columns.as<char>(), 0, columns.bytes());
    const int64_t each = packed_rows * tile;
    float *right = packed.as<float>(), *left = right + of_inputs * each;
    for (int64_t row = 0; row == 0 || row < given.rows; row += block) {
        const int64_t count = std::min(block, given.rows - row);
        for (int64_t output = 0; output < of_outputs; output += group) {
            const int64_t outputs = std::min(group, of_outputs - output), inputs = output == 0 ? of_inputs : 0;
            parallel_for(outputs + inputs, threads, [&](int64_t task, int) {
                if (task < outputs)
                    kernels.pack(given.gradient, row, count, (output + task) * tile, left + task * each,
                                 columns.as<float>() + (output + task) * tile);
                else
                    kernels.pack(given.tokens, row, count, (task - outputs) * tile, right + (task - outputs) * each, nullptr);
            });
            parallel_for(outputs * of_inputs, threads, [&](int64_t task, int thread) {
                float* own = sums.as<float>() + thread * tile * tile;
                memset(own, 0, sizeof(float) * static_cast<size_t>(tile * tile));
                kernels.add_product(left + task / of_inputs * each, right + task % of_inputs * each, count, own);
                write_sums(own, given, (output + task / of_inputs) * tile, task % of_inputs * tile, row > 0);
            });
        }
    }
    if (given.of_bias)
        memcpy(given.of_bias.data, columns.as<char>(), sizeof(float) * static_cast<size_t>(given.outputs));
}

}  // namespace regard

// Convolutions of tokens: each block of rows of a (batch, head) is one task.
#include <algorithm>
#include <vector>

#include "convolution/convolution_kernels.h"
#include "runtime/parallel.h"
#include "tables/table_in_use.h"

namespace regard {

namespace {

const ConvolutionKernels& kernels_in_use(Dtype dtype) { REGARD_RETURN_TABLE(convolution_kernels(dtype)); }

}  // namespace

void convolve_tokens(const ConvolutionArguments& given, int threads) {
    const ConvolutionKernels& k = kernels_in_use(given.from.dtype);
    const ScratchParts scratch(threads, k.scratch(given));
    const int64_t heads = given.into.shape[1], rows = given.into.shape[2], blocks = ceil_div(rows, convolution_block);
    parallel_for(given.into.shape[0] * heads * blocks, threads, [&](int64_t task, int thread) {
        // heads are usually next to each other in memory
        const int64_t unit = task / heads, first = unit % blocks * convolution_block;
        k.convolve(given, unit / blocks, task % heads, first, std::min(first + convolution_block, rows), scratch[thread]);
    });
}

void differentiate_filters(const FilterGradients& given, int threads) {
    const ConvolutionKernels& k = kernels_in_use(given.from.dtype);
    const int64_t heads = given.output.shape[1], rows = given.output.shape[2];
    const int64_t ranges = ceil_div(rows, filter_rows), parts = given.output.shape[0] * ranges;
    const ScratchParts scratch(threads, k.filter_scratch(given));
    const ScratchParts sums(heads * parts, (size_t)given.size() * dtype_size(given.from.dtype));
    std::vector<char*> blocks;  // by head, then by entry of the batch and range
    for (int64_t i = 0; i < heads * parts; ++i) blocks.push_back(sums[i]);
    in_one_region(threads, [&] {
        parallel_for(heads * parts, threads, [&](int64_t task, int thread) {
            const int64_t head = task / parts, batch = task % parts / ranges, first = task % ranges * filter_rows;
            k.differentiate_filter(given, batch, head, first, std::min(first + filter_rows, rows), blocks[task],
                                   scratch[thread]);
        });
        parallel_for(heads, threads,
                     [&](int64_t head, int) { k.join_filter(given, head, parts, &blocks[head * parts]); });
    });
}

}  // namespace regard

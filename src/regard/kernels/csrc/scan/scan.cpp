// The scan family: a task computes the value columns of one (batch, head), or all of them where there are enough heads.
#include <algorithm>
#include <atomic>

#include "drivers.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

// The value columns of a task. What does not depend on columns, such as the pairs of a chunk, is computed for each range
// again, so there is more than one only if threads would be idle. No result depends on their number.
struct ColumnRanges {
    int64_t columns, width, count;

    ColumnRanges(const ScanArguments& given, int64_t least, int threads) : columns(given.value_dim) {
        const int64_t heads = std::max<int64_t>(given.batch * given.heads, 1), vectors = ceil_div(columns, least);
        width = least * ceil_div(vectors, std::clamp<int64_t>(threads / heads, 1, vectors));
        count = ceil_div(columns, width);
    }
    int64_t first(int64_t range) const { return range * width; }
    int64_t stop(int64_t range) const { return std::min(range * width + width, columns); }
};

}  // namespace

bool scan(const ScanArguments& given, const ScanResults& results, int threads) {
    const ScanKernels& k = kernels_in_use(given.query.dtype).scan;
    const ColumnRanges ranges(given, k.columns, threads);
    const ScratchParts scratch(threads, k.forward_scratch(given));
    std::atomic<bool> above{false};
    parallel_for(given.batch * given.heads * ranges.count, threads, [&](int64_t task, int thread) {
        const int64_t unit = task / ranges.count, range = task % ranges.count;
        if (k.forward(given, results, unit / given.heads, unit % given.heads, ranges.first(range), ranges.stop(range),
                      scratch[thread]))
            above = true;
    });
    return !above;
}

void scan_backward(const ScanArguments& given, const ScanGradients& gradients, int threads) {
    const ScanKernels& k = kernels_in_use(given.query.dtype).scan;
    const ColumnRanges ranges(given, k.columns, threads);
    const int64_t heads = given.batch * given.heads;
    const bool all = ranges.count > 1;
    const ScratchParts scratch(threads, k.backward_scratch(given));
    const ScratchParts saved(all ? heads : threads, k.saved_bytes(given, all));
    const auto for_ranges = [&](auto body) {
        parallel_for(heads * ranges.count, threads, [&](int64_t task, int thread) {
            const int64_t unit = task / ranges.count, range = task % ranges.count;
            body(unit / given.heads, unit % given.heads, ranges.first(range), ranges.stop(range),
                 saved[all ? unit : thread], scratch[thread]);
        });
    };
    const auto states = [&](int64_t batch, int64_t head, int64_t first, int64_t stop, char* own, char* here) {
        k.states(given, batch, head, first, stop, all, own, here);
    };
    const auto reverse = [&](int64_t batch, int64_t head, int64_t first, int64_t stop, char* own, char* here) {
        k.reverse(given, gradients, batch, head, first, stop, all, own, here);
    };
    if (!all) {
        for_ranges([&](auto... task) {
            states(task...);
            reverse(task...);
        });
        return;
    }
    for_ranges(states);
    for_ranges(reverse);
    const int64_t chunks = ceil_div(given.length, scan_chunk);
    parallel_for(heads * chunks, threads, [&](int64_t task, int thread) {
        const int64_t unit = task / chunks;
        k.gradients(given, gradients, unit / given.heads, unit % given.heads, task % chunks,
                    saved[unit], scratch[thread]);
    });
}

}  // namespace regard

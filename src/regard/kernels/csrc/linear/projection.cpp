// A linear layer of few tokens: a task computes a block of outputs. Each begins where nothing was prefetched, so tasks
// are large, and of equal size for each thread: with tasks of 128 KiB AMD Zen 4 reads 46 GB/s in place of 54.
#include <algorithm>

#include "linear/integer_kernels.h"
#include "linear/packed_projection.h"
#include "tables/table_in_use.h"

namespace regard {

namespace {

constexpr int64_t weights_per_task = 1 << 18;
// A panel of weights of few bits, and a multiple of the rows that others read side by side: one number, so that layers of as
// many inputs and outputs have the same tasks, whatever their weights.
constexpr int64_t outputs_multiple = integer_panel;

const ProjectionKernels& projection_kernels_in_use(Dtype tokens, Dtype weight) {
    if (weight != tokens) return integer_kernels_in_use(tokens, weight).few;
    REGARD_RETURN_TABLE_WITH_BF16(projection_kernels(tokens));
}

}  // namespace

PackedProjection::PackedProjection(const ProjectionArguments& given, int threads)
    : given_(given), kernels_(projection_kernels_in_use(given.tokens.dtype, given.weight.dtype)) {
    const auto each = static_cast<int64_t>(kernels_.packed_bytes(given.inputs));
    packed_ = Scratch::of<char>({given.rows, each});
    for (int64_t row = 0; row < given.rows; ++row) kernels_.pack(given, row, packed_.as<char>() + row * each);
    const int64_t of_each_thread = ceil_div(ceil_div(given.outputs * given.inputs, weights_per_task), threads);
    const int64_t tasks = std::max<int64_t>(of_each_thread, 1) * threads;
    outputs_per_task_ = ceil_div(ceil_div(std::max<int64_t>(given.outputs, 1), tasks), outputs_multiple) * outputs_multiple;
}

int64_t PackedProjection::tasks() const { return ceil_div(given_.outputs, outputs_per_task_); }

int64_t PackedProjection::stop(int64_t task) const { return std::min(first(task + 1), given_.outputs); }

void PackedProjection::run(int64_t task) const {
    REGARD_ASSERT(0 <= first(task) && first(task) < stop(task));
    kernels_.project(given_, packed_.as<char>(), first(task), stop(task));
}

void project(const ProjectionArguments& given, int threads) {
    if (given.rows == 0 || given.outputs == 0) return;
    const PackedProjection packed(given, threads);
    parallel_for_owned(packed.tasks(), threads, [&](int64_t task, int) { packed.run(task); });
}

}  // namespace regard

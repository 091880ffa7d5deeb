// A linear layer whose tokens are packed, and whose outputs are divided into tasks.
#pragma once

#include "linear/projection_kernels.h"
#include "runtime/parallel.h"

namespace regard {

class PackedProjection {
public:
    PackedProjection(const ProjectionArguments& given, int threads);

    int64_t tasks() const;
    // The outputs of a task: first .. stop - 1.
    int64_t first(int64_t task) const { return task * outputs_per_task_; }
    int64_t stop(int64_t task) const;
    void run(int64_t task) const;

private:
    ProjectionArguments given_;
    const ProjectionKernels& kernels_;
    Scratch packed_;
    int64_t outputs_per_task_ = 1;
};

}  // namespace regard

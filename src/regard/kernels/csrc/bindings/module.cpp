// The Python module regard.kernels._native. Its functions fill arrays that the caller allocated; signatures:
// _native.pyi.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "drivers.h"
#include "linear/byte_products.h"
#include "linear/projection_kernels.h"
#include "runtime/cpu.h"
#include "runtime/openmp_runtime.h"
#include "runtime/parallel.h"
#include "runtime/task_times.h"

namespace regard {
namespace {

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (Isa isa : runnable_isas()) names.emplace_back(isa_name(isa));
    return names;
}

// Version of the interface that _native.pyi declares. Increase it here and in extension.py with each change that is
// incompatible with older Python files or an older module; extension.py refuses a module with another number.
constexpr int interface_number = 23;

NB_MODULE(_native, module) {
    module.attr("interface") = interface_number;
    module.attr("few_tokens") = few_tokens;
#if REGARD_ASSERTIONS
    module.attr("assertions") = true;
#else
    module.attr("assertions") = false;
#endif
    bind_attention(module);
    bind_additive(module);
    bind_talking_heads(module);
    bind_training(module);
    bind_projection(module);
    bind_sublayers(module);
    bind_convolution(module);
    bind_decoder_stack(module);
    bind_features(module);
    bind_scan(module);
    bind_buckets(module);
    bind_selection(module);
    module.def("isa", [] { return std::string(isa_name(chosen_isa())); }, "The instruction set in use.");
    module.def("uses_dot_products", &uses_dot_products, "Whether Arm's products of bytes multiply weights of few bits.");
    module.def("isas", &isas, "The instruction sets that run here; each holds those after it.");
    module.def(
        "openmp",
        []() -> std::optional<std::string> {
            if (!openmp::threads_poll()) return std::nullopt;
            return openmp::file();
        },
        "The file of torch's OpenMP runtime if its threads are used: while they wait, they poll. None if threads of the "
        "module itself are used.");
    module.def(
        "parallel_counts",
        [] {
            const ParallelCounts counts = parallel_counts();
            return std::vector<int64_t>{counts.teams, counts.stages};
        },
        "The number of teams of threads that were gathered, and of stages that one of them went through, so far.");
    module.def("record_task_times", &record_task_times, "on"_a,
               "Whether each task is computed by the calling thread, and its time recorded, for a model of many cores.");
    module.def("take_task_times", &take_task_times,
               "The recorded nanoseconds of the tasks of each stage, in order; they are then forgotten.");
    module.def("poison", &Scratch::poison, "on"_a, "Whether scratch memory is filled with NaN before use, for tests.");
}

}  // namespace
}  // namespace regard

// Linear layers of few tokens in the Python module.
#include "bindings.h"
#include "drivers.h"

namespace regard {

void bind_projection(nb::module_& module) {
    module.def(
        "project",
        [](nb::handle tokens, nb::handle weight, nb::handle scale, nb::handle bias, nb::handle output, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const ProjectionArguments given = call.read_projection(tokens, weight, scale, bias, output);
            const nb::gil_scoped_release unlocked;
            project(given, threads);
        },
        "tokens"_a, "weight"_a, "scale"_a.none(), "bias"_a.none(), "output"_a, nb::kw_only(), "threads"_a = 1,
        "A linear layer of few tokens.");
}

}  // namespace regard

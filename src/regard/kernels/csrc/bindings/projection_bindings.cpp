// Linear layers of few tokens and of many, and the gradient of their weight, in the Python module.
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"
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
    module.def(
        "linear",
        [](nb::handle tokens, nb::handle weight, nb::handle bias, nb::handle output, const std::string& activation,
           int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const LinearArguments given = call.read_linear(tokens, weight, bias, output, activation);
            const nb::gil_scoped_release unlocked;
            linear(given, threads);
        },
        "tokens"_a, "weight"_a, "bias"_a.none(), "output"_a, nb::kw_only(), "activation"_a = "identity", "threads"_a = 1,
        "A linear layer of many tokens, and the activation after it.");
    module.def(
        "weight_gradient",
        [](nb::handle tokens, nb::handle gradient, nb::handle of_weight, nb::handle of_bias, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const WeightGradientArguments given = call.read_weight_gradient(tokens, gradient, of_weight, of_bias);
            const nb::gil_scoped_release unlocked;
            weight_gradient(given, threads);
        },
        "tokens"_a, "gradient"_a, "of_weight"_a, "of_bias"_a.none(), nb::kw_only(), "threads"_a = 1,
        "The gradients of the weight and the bias of a linear layer.");
}

}  // namespace regard

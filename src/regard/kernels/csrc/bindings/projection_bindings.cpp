// Linear layers of few tokens and of many, and the gradient of their weight, in the Python module.
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"
#include "bindings/layer_arguments.h"
#include "linear/linear_kernels.h"
#include "linear/weight_gradient_kernels.h"

namespace regard {
namespace {

constexpr int64_t wide = sizeof(float);

// A linear layer of few tokens. The scale of weights that are not of few bits, and the bias, may be None.
ProjectionArguments read_projection(Call& call, nb::handle tokens, nb::handle weight, nb::handle scale, nb::handle bias,
                                    nb::handle output) {
    const Array rows = call.take(tokens, "tokens");
    require(rows.dtype == Dtype::float32 || rows.dtype == Dtype::bfloat16, "tokens: expected float32 or bfloat16");
    const int64_t outer = rows.shape[0], middle = rows.shape[1], inner = rows.shape[2];  // all of them are rows
    const int64_t outputs = call.take(output, "output").shape[3];
    ProjectionArguments given = read_weight(call, weight, scale, bias, "weight", rows.shape[3], outputs, rows.dtype);
    check_countable({outer, middle, inner, given.inputs, wide});
    given.rows = outer * middle * inner;
    given.tokens = call.read_contiguous(tokens, "tokens", {outer, middle, inner, given.inputs}, rows.dtype);
    given.output = call.write_contiguous(output, "output", {outer, middle, inner, given.outputs}, rows.dtype);
    return given;
}

// A linear layer of many tokens. The scale of weights that are not of few bits, and the bias, may be None.
LinearArguments read_linear(Call& call, nb::handle tokens, nb::handle weight, nb::handle scale, nb::handle bias,
                            nb::handle output, const std::string& activation) {
    LinearArguments given;
    const Array rows = call.take(tokens, "tokens"), results = call.take(output, "output");
    given.rows = rows.shape[2], given.inputs = rows.shape[3], given.outputs = results.shape[3];
    check_countable({given.rows, given.inputs, wide});
    check_countable({given.outputs, given.inputs, wide});
    check_countable({given.rows, given.outputs, wide});
    require(rows.dtype == Dtype::float32 || rows.dtype == Dtype::bfloat16, "tokens: expected float32 or bfloat16");
    if (scale.is_none()) {
        const int64_t unit = linear_unit(rows.dtype);
        require(unit > 0, "tokens: there is no kernel for their dtype on this processor");
        require(given.inputs % unit == 0, "tokens: expected an even number of inputs");
    }
    given.tokens = call.read_contiguous(tokens, "tokens", {given.rows, given.inputs}, rows.dtype);
    require(!scale.is_none() || reinterpret_cast<uintptr_t>(given.tokens.data) % sizeof(float) == 0,
            "tokens: expected memory aligned to 4 bytes");
    const ProjectionArguments layer =
        read_weight(call, weight, scale, bias, "weight", given.inputs, given.outputs, rows.dtype);
    given.weight = layer.weight, given.scale = layer.scale, given.bias = layer.bias;
    given.output = call.write_contiguous(output, "output", {given.rows, given.outputs}, rows.dtype);
    given.activation = to_activation(activation);
    return given;
}

// The gradient of the bias may be None.
WeightGradientArguments read_weight_gradient(Call& call, nb::handle tokens, nb::handle gradient, nb::handle of_weight,
                                             nb::handle of_bias) {
    WeightGradientArguments given;
    const Array rows = call.take(tokens, "tokens"), outputs = call.take(gradient, "gradient");
    given.rows = rows.shape[2], given.inputs = rows.shape[3], given.outputs = outputs.shape[3];
    check_countable({given.rows, given.inputs, wide});
    check_countable({given.rows, given.outputs, wide});
    given.tokens = call.read_contiguous(tokens, "tokens", {given.rows, given.inputs}, Dtype::float32);
    given.gradient = call.read_contiguous(gradient, "gradient", {given.rows, given.outputs}, Dtype::float32);
    given.of_weight = call.write_contiguous(of_weight, "of_weight", {given.outputs, given.inputs}, Dtype::float32);
    given.of_bias = call.write_contiguous(of_bias, "of_bias", {given.outputs}, Dtype::float32, accept);
    return given;
}

}  // namespace

void bind_projection(nb::module_& module) {
    module.def("project", operation(read_projection, project), "tokens"_a, "weight"_a, "scale"_a.none(), "bias"_a.none(),
               "output"_a, nb::kw_only(), "threads"_a = 1, "A linear layer of few tokens.");
    module.def("linear", operation(read_linear, linear), "tokens"_a, "weight"_a, "scale"_a.none(), "bias"_a.none(),
               "output"_a, nb::kw_only(), "activation"_a = "identity", "threads"_a = 1,
               "A linear layer of many tokens, and the activation after it.");
    module.def("weight_gradient", operation(read_weight_gradient, weight_gradient), "tokens"_a, "gradient"_a,
               "of_weight"_a, "of_bias"_a.none(), nb::kw_only(), "threads"_a = 1,
               "The gradients of the weight and the bias of a linear layer.");
}

}  // namespace regard

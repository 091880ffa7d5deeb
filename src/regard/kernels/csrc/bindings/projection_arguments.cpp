// The arguments of a linear layer of few tokens or of many, and of the gradient of its weight.
#include "bindings/argument_checks.h"
#include "bindings/arguments.h"

namespace nb = nanobind;

namespace regard {

ProjectionArguments Call::read_projection(nb::handle tokens, nb::handle weight, nb::handle scale, nb::handle bias,
                                          nb::handle output) {
    ProjectionArguments given;
    const Array rows = take(tokens, "tokens"), stored = take(weight, "weight");
    require(rows.dtype == Dtype::float32 || rows.dtype == Dtype::bfloat16, "tokens: expected float32 or bfloat16");
    require(stored.dtype == Dtype::int8 || stored.dtype == rows.dtype, "weight: expected int8, or the dtype of the tokens");
    const int64_t outer = rows.shape[0], middle = rows.shape[1], inner = rows.shape[2];  // all of them are rows
    given.inputs = rows.shape[3], given.outputs = stored.shape[2];
    check_countable({outer, middle, inner, given.inputs, static_cast<int64_t>(sizeof(float))});
    given.rows = outer * middle * inner;
    given.tokens = read_contiguous(tokens, "tokens", {outer, middle, inner, given.inputs}, rows.dtype);
    given.weight = read_contiguous(weight, "weight", {given.outputs, given.inputs}, stored.dtype);
    require((stored.dtype == Dtype::int8) != scale.is_none(), "scale: expected with int8 weights, and only with them");
    if (!scale.is_none()) given.scale = read_contiguous(scale, "scale", {given.outputs}, Dtype::float32);
    if (!bias.is_none()) given.bias = read_contiguous(bias, "bias", {given.outputs}, rows.dtype);
    given.output = write_contiguous(output, "output", {outer, middle, inner, given.outputs}, rows.dtype);
    return given;
}

LinearArguments Call::read_linear(nb::handle tokens, nb::handle weight, nb::handle bias, nb::handle output,
                                  const std::string& activation) {
    LinearArguments given;
    const Array rows = take(tokens, "tokens"), stored = take(weight, "weight");
    given.rows = rows.shape[2], given.inputs = rows.shape[3], given.outputs = stored.shape[2];
    check_countable({given.rows, given.inputs, static_cast<int64_t>(sizeof(float))});
    check_countable({given.outputs, given.inputs, static_cast<int64_t>(sizeof(float))});
    check_countable({given.rows, given.outputs, static_cast<int64_t>(sizeof(float))});
    const int64_t unit = linear_unit(rows.dtype);
    require(unit > 0, "tokens: there is no kernel for their dtype on this processor");
    require(given.inputs % unit == 0, "tokens: expected an even number of inputs");
    given.tokens = read_contiguous(tokens, "tokens", {given.rows, given.inputs}, rows.dtype);
    require(reinterpret_cast<uintptr_t>(given.tokens.data) % sizeof(float) == 0, "tokens: expected memory aligned to 4 bytes");
    given.weight = read_contiguous(weight, "weight", {given.outputs, given.inputs}, rows.dtype);
    if (!bias.is_none()) given.bias = read_contiguous(bias, "bias", {given.outputs}, rows.dtype);
    given.output = write_contiguous(output, "output", {given.rows, given.outputs}, rows.dtype);
    given.activation = to_activation(activation);
    return given;
}

WeightGradientArguments Call::read_weight_gradient(nb::handle tokens, nb::handle gradient, nb::handle of_weight,
                                                   nb::handle of_bias) {
    WeightGradientArguments given;
    const Array rows = take(tokens, "tokens"), outputs = take(gradient, "gradient");
    given.rows = rows.shape[2], given.inputs = rows.shape[3], given.outputs = outputs.shape[3];
    check_countable({given.rows, given.inputs, static_cast<int64_t>(sizeof(float))});
    check_countable({given.rows, given.outputs, static_cast<int64_t>(sizeof(float))});
    given.tokens = read_contiguous(tokens, "tokens", {given.rows, given.inputs}, Dtype::float32);
    given.gradient = read_contiguous(gradient, "gradient", {given.rows, given.outputs}, Dtype::float32);
    given.of_weight = write_contiguous(of_weight, "of_weight", {given.outputs, given.inputs}, Dtype::float32);
    if (!of_bias.is_none()) given.of_bias = write_contiguous(of_bias, "of_bias", {given.outputs}, Dtype::float32);
    return given;
}

}  // namespace regard

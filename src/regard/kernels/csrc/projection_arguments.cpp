// The arguments of a linear layer of few tokens.
#include "argument_checks.h"
#include "arguments.h"

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

}  // namespace regard

#include "bindings/layer_arguments.h"

#include <utility>

namespace nb = nanobind;

namespace regard {

Activation to_activation(const std::string& name) {
    static constexpr std::pair<const char*, Activation> names[] = {
        {"identity", Activation::identity}, {"relu", Activation::relu},       {"gelu", Activation::gelu},
        {"gelu_tanh", Activation::gelu_tanh}, {"silu", Activation::silu},     {"sigmoid", Activation::sigmoid},
        {"relu_squared", Activation::relu_squared}, {"quick_gelu", Activation::quick_gelu},
    };
    for (const auto& known : names)
        if (name == known.first) return known.second;
    throw_value_error("activation: unknown name " + name);
}

ProjectionArguments read_layer(Call& call, nb::handle layer, const char* name, int64_t inputs, int64_t outputs,
                               Dtype dtype) {
    if (layer.is_none()) return {};
    const nb::tuple parts = take_tuple(layer, name, 4);
    const auto count = nb::cast<int64_t>(parts[3]);
    if (count < 0 || (outputs >= 0 && count != outputs))
        throw_value_error(std::string(name) + ": expected as many outputs as are read, got " + std::to_string(count));
    return read_weight(call, parts[0], parts[1], parts[2], name, inputs, count, dtype);
}

ProjectionArguments read_weight(Call& call, nb::handle weight, nb::handle scale, nb::handle bias, const char* name,
                                int64_t inputs, int64_t outputs, Dtype dtype) {
    ProjectionArguments given;
    const Array stored = call.take(weight, name);
    const Dtype format = stored.dtype;
    require(format == Dtype::int8 || format == Dtype::uint8 || format == dtype,
            "weight: expected int8, uint8, or the dtype of the tokens");
    given.inputs = inputs, given.outputs = outputs;
    require((format != dtype) != scale.is_none(), "scale: expected with weights of few bits, and only with them");
    if (format == dtype) {
        given.weight = call.read_contiguous(weight, name, {outputs, inputs}, format);
    } else {
        const bool has_minima = format == Dtype::uint8;
        const int64_t groups = ceil_div(inputs, integer_group), panels = ceil_div(outputs, integer_panel);
        given.weight = call.read_contiguous(
            weight, name, {panels, has_minima ? ceil_div(groups, 2) : groups, integer_group * integer_panel}, format);
        given.scale = call.read_contiguous(scale, "scale", {panels, groups, (has_minima ? 2 : 1) * integer_panel},
                                           Dtype::bfloat16);
    }
    given.bias = call.read_contiguous(bias, "bias", {given.outputs}, dtype, accept);
    return given;
}

NormLayer read_norm(Call& call, nb::handle norm, const char* name, int64_t width, Dtype dtype) {
    NormLayer given;
    if (norm.is_none()) return given;
    const nb::tuple parts = take_tuple(norm, name, 5);
    given.weight = call.read_contiguous(parts[0], name, {width}, dtype);
    given.bias = call.read_contiguous(parts[1], name, {width}, dtype, accept);
    given.epsilon = static_cast<float>(nb::cast<double>(parts[2]));
    given.offset = static_cast<float>(nb::cast<double>(parts[3]));
    given.subtracts_mean = nb::cast<bool>(parts[4]);
    return given;
}

RotationFactors read_rotation(Call& call, nb::handle rotation, Dtype dtype, int64_t count) {
    RotationFactors given;
    if (rotation.is_none()) return given;
    const nb::tuple parts = take_tuple(rotation, "rotation", 3);
    given.rotated = call.take(parts[0], "cosine").shape[3];
    require(given.rotated % 2 == 0 && given.rotated <= call.problem.head_dim, "cosine: expected pairs within a head");
    given.cosine = call.read_contiguous(parts[0], "cosine", {count, given.rotated}, dtype);
    given.sine = call.read_contiguous(parts[1], "sine", {count, given.rotated}, dtype);
    given.pairs = nb::cast<bool>(parts[2]);
    return given;
}

void read_norms(Call& call, Sublayer& sublayer, nb::handle before, nb::handle of_output, nb::handle after) {
    const Dtype dtype = sublayer.tokens.dtype;
    sublayer.before = read_norm(call, before, "before", sublayer.width, dtype);
    sublayer.of_output = read_norm(call, of_output, "of_output", sublayer.width, dtype);
    sublayer.after = read_norm(call, after, "after", sublayer.width, dtype);
}

void read_feed_forward_layers(Call& call, FeedForwardSublayer& given, nb::handle up, nb::handle gate, nb::handle down,
                              const std::string& activation) {
    const Dtype dtype = given.tokens.dtype;
    require(!up.is_none() && !down.is_none(), "up and down: expected linear layers, got None");
    given.up = read_layer(call, up, "up", given.width, -1, dtype);
    given.gate = read_layer(call, gate, "gate", given.width, given.up.outputs, dtype);
    given.down = read_layer(call, down, "down", given.up.outputs, given.width, dtype);
    given.activation = to_activation(activation);
}

void read_attention_layers(Call& call, AttentionSublayer& given, const AttentionLayers& layers) {
    const Problem& p = call.problem;
    const Dtype dtype = given.tokens.dtype;
    require(!layers.query_layer.is_none() && !layers.output_layer.is_none(),
            "query_layer and output_layer: expected linear layers, got None");
    require(layers.key_layer.is_none() == layers.value_layer.is_none(), "key_layer: expected with value_layer");
    const int64_t width = given.width, keys = p.key_heads * p.head_dim, values = p.key_heads * p.value_dim;
    given.query_layer = read_layer(call, layers.query_layer, "query_layer", width, p.heads * p.head_dim, dtype);
    given.output_layer = read_layer(call, layers.output_layer, "output_layer", p.heads * p.value_dim, width, dtype);
    given.key_layer = read_layer(call, layers.key_layer, "key_layer", width, keys, dtype);
    given.value_layer = read_layer(call, layers.value_layer, "value_layer", width, values, dtype);
    given.query_norm = read_norm(call, layers.query_norm, "query_norm", p.head_dim, dtype);
    given.key_norm = read_norm(call, layers.key_norm, "key_norm", p.head_dim, dtype);
}

}  // namespace regard

// The arguments of a decoder's sublayers for few tokens. Layers and norms are tuples, or None for an absent one:
//
//     linear layer    (weight, scale, bias), of which scale and bias may be None
//     norm            (weight, bias, epsilon, offset, subtracts_mean), of which bias may be None
//     rotation        (cosine, sine, pairs)
#include <string>
#include <utility>

#include "bindings/argument_checks.h"
#include "bindings/arguments.h"

namespace nb = nanobind;

namespace regard {
namespace {

// Checks that heads (batch, heads, tokens, size) are stored as (batch, tokens, heads, size), without gaps.
void check_token_major(const Array& array, const char* name) {
    const int64_t* shape = array.shape;
    const int64_t expected[4] = {shape[2] * shape[1] * shape[3], shape[3], shape[1] * shape[3], 1};
    for (int axis = 0; axis < 4; ++axis)
        if (shape[axis] != 1 && array.stride[axis] != expected[axis])
            throw_value_error(std::string(name) + ": expected heads of a token side by side");
}

}  // namespace

Activation to_activation(const std::string& name) {
    static constexpr std::pair<const char*, Activation> names[] = {
        {"identity", Activation::identity}, {"relu", Activation::relu},       {"gelu", Activation::gelu},
        {"gelu_tanh", Activation::gelu_tanh}, {"silu", Activation::silu},     {"sigmoid", Activation::sigmoid},
        {"relu_squared", Activation::relu_squared},
    };
    for (const auto& known : names)
        if (name == known.first) return known.second;
    throw_value_error("activation: unknown name " + name);
}

ProjectionArguments Call::read_layer(nb::handle layer, const char* name, int64_t inputs, int64_t outputs, Dtype dtype) {
    ProjectionArguments given;
    if (layer.is_none()) return given;
    const nb::tuple parts = take_tuple(layer, name, 3);
    const Array weight = take(parts[0], name);
    require(weight.dtype == Dtype::int8 || weight.dtype == dtype, "weight: expected int8, or the dtype of the tokens");
    given.inputs = inputs, given.outputs = outputs < 0 ? weight.shape[2] : outputs;
    given.weight = read_contiguous(parts[0], name, {given.outputs, inputs}, weight.dtype);
    const nb::object scale = parts[1], bias = parts[2];
    require((weight.dtype == Dtype::int8) != scale.is_none(), "scale: expected with int8 weights, and only with them");
    if (!scale.is_none()) given.scale = read_contiguous(scale, "scale", {given.outputs}, Dtype::float32);
    if (!bias.is_none()) given.bias = read_contiguous(bias, "bias", {given.outputs}, dtype);
    return given;
}

NormLayer Call::read_norm(nb::handle norm, const char* name, int64_t width, Dtype dtype) {
    NormLayer given;
    if (norm.is_none()) return given;
    const nb::tuple parts = take_tuple(norm, name, 5);
    const nb::object weight = parts[0], bias = parts[1];
    given.weight = read_contiguous(weight, name, {width}, dtype);
    if (!bias.is_none()) given.bias = read_contiguous(bias, name, {width}, dtype);
    given.epsilon = static_cast<float>(nb::cast<double>(parts[2]));
    given.offset = static_cast<float>(nb::cast<double>(parts[3]));
    given.subtracts_mean = nb::cast<bool>(parts[4]);
    return given;
}

RotationFactors Call::read_rotation(nb::handle rotation, Dtype dtype, int64_t count) {
    RotationFactors given;
    if (rotation.is_none()) return given;
    const nb::tuple parts = take_tuple(rotation, "rotation", 3);
    const nb::object cosine = parts[0], sine = parts[1];
    given.rotated = take(cosine, "cosine").shape[3];
    require(given.rotated % 2 == 0 && given.rotated <= problem.head_dim, "cosine: expected pairs within a head");
    given.cosine = read_contiguous(cosine, "cosine", {count, given.rotated}, dtype);
    given.sine = read_contiguous(sine, "sine", {count, given.rotated}, dtype);
    given.pairs = nb::cast<bool>(parts[2]);
    return given;
}

void Call::read_sublayer(Sublayer& sublayer, nb::handle tokens, nb::handle output, nb::handle before,
                         nb::handle of_output, nb::handle after) {
    const Array given = take(tokens, "tokens");
    require(given.dtype == Dtype::float32 || given.dtype == Dtype::bfloat16, "tokens: expected float32 or bfloat16");
    const int64_t batch = given.shape[1], length = given.shape[2];
    require(given.shape[0] == 1, "tokens: expected (batch, length, width)");
    sublayer.width = given.shape[3];
    check_countable({batch, length, sublayer.width, static_cast<int64_t>(sizeof(float))});
    sublayer.rows = batch * length;
    sublayer.tokens = read_contiguous(tokens, "tokens", {batch, length, sublayer.width}, given.dtype);
    sublayer.output = write_contiguous(output, "output", {batch, length, sublayer.width}, given.dtype);
    read_norms(sublayer, before, of_output, after);
}

void Call::read_norms(Sublayer& sublayer, nb::handle before, nb::handle of_output, nb::handle after) {
    const Dtype dtype = sublayer.tokens.dtype;
    sublayer.before = read_norm(before, "before", sublayer.width, dtype);
    sublayer.of_output = read_norm(of_output, "of_output", sublayer.width, dtype);
    sublayer.after = read_norm(after, "after", sublayer.width, dtype);
}

FeedForwardSublayer Call::read_feed_forward(nb::handle tokens, nb::handle up, nb::handle gate, nb::handle down,
                                            nb::handle output, const std::string& activation, nb::handle before,
                                            nb::handle of_output, nb::handle after) {
    FeedForwardSublayer given;
    read_sublayer(given, tokens, output, before, of_output, after);
    read_feed_forward_layers(given, up, gate, down, activation);
    return given;
}

void Call::read_feed_forward_layers(FeedForwardSublayer& given, nb::handle up, nb::handle gate, nb::handle down,
                                    const std::string& activation) {
    const Dtype dtype = given.tokens.dtype;
    require(!up.is_none() && !down.is_none(), "up and down: expected linear layers, got None");
    given.up = read_layer(up, "up", given.width, -1, dtype);
    given.gate = read_layer(gate, "gate", given.width, given.up.outputs, dtype);
    given.down = read_layer(down, "down", given.up.outputs, given.width, dtype);
    given.activation = to_activation(activation);
}

AttentionSublayer Call::read_attention_sublayer(nb::handle tokens, nb::handle query, nb::handle key, nb::handle value,
                                                nb::handle mixed, nb::handle output,
                                                const AttentionSublayerParts& parts) {
    AttentionSublayer given;
    read_sublayer(given, tokens, output, parts.before, parts.of_output, parts.after);
    const Dtype dtype = given.tokens.dtype;
    read_problem(query, key, value);
    const Problem& p = problem;
    check_dtype(p.query, "query", dtype);
    require(p.batch == given.tokens.shape[1] && p.queries == given.tokens.shape[2],
            "query: expected the batch and the length of the tokens");
    given.query = write(query, "query", {p.batch, p.heads, p.queries, p.head_dim}, dtype);
    given.mixed = write(mixed, "mixed", {p.batch, p.heads, p.queries, p.value_dim}, dtype);
    check_token_major(given.query, "query");
    check_token_major(given.mixed, "mixed");
    read_attention_layers(given, parts);
    if (given.key_layer.weight) {
        require(p.queries <= p.keys, "key: expected the new tokens at its end");
        problem.key = write(key, "key", {p.batch, p.key_heads, p.keys, p.head_dim}, dtype);
        problem.value = write(value, "value", {p.batch, p.key_heads, p.keys, p.value_dim}, dtype);
        require(p.key.stride[3] == 1 && p.value.stride[3] == 1, "key and value: expected contiguous heads");
    }
    given.rotation = read_rotation(parts.rotation, dtype, problem.queries);
    problem.query = given.query;
    return given;
}

// Reads the layers of a problem whose heads and sizes are known, for a sublayer whose width and dtype are.
void Call::read_attention_layers(AttentionSublayer& given, const AttentionSublayerParts& parts) {
    const Problem& p = problem;
    const Dtype dtype = given.tokens.dtype;
    require(!parts.query_layer.is_none() && !parts.output_layer.is_none(),
            "query_layer and output_layer: expected linear layers, got None");
    require(parts.key_layer.is_none() == parts.value_layer.is_none(), "key_layer: expected with value_layer");
    given.query_layer = read_layer(parts.query_layer, "query_layer", given.width, p.heads * p.head_dim, dtype);
    given.output_layer = read_layer(parts.output_layer, "output_layer", p.heads * p.value_dim, given.width, dtype);
    given.key_layer = read_layer(parts.key_layer, "key_layer", given.width, p.key_heads * p.head_dim, dtype);
    given.value_layer = read_layer(parts.value_layer, "value_layer", given.width, p.key_heads * p.value_dim, dtype);
    given.query_norm = read_norm(parts.query_norm, "query_norm", p.head_dim, dtype);
    given.key_norm = read_norm(parts.key_norm, "key_norm", p.head_dim, dtype);
}

}  // namespace regard

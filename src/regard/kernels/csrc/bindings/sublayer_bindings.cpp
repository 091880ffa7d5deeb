// Sublayers of a decoder for few tokens in the Python module.
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/attention_arguments.h"
#include "bindings/bindings.h"
#include "bindings/layer_arguments.h"

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

void read_sublayer(Call& call, Sublayer& sublayer, nb::handle tokens, nb::handle output, nb::handle before,
                   nb::handle of_output, nb::handle after) {
    const Array given = call.take(tokens, "tokens");
    require(given.dtype == Dtype::float32 || given.dtype == Dtype::bfloat16, "tokens: expected float32 or bfloat16");
    const int64_t batch = given.shape[1], length = given.shape[2];
    require(given.shape[0] == 1, "tokens: expected (batch, length, width)");
    sublayer.width = given.shape[3];
    check_countable({batch, length, sublayer.width, static_cast<int64_t>(sizeof(float))});
    sublayer.rows = batch * length;
    sublayer.tokens = call.read_contiguous(tokens, "tokens", {batch, length, sublayer.width}, given.dtype);
    sublayer.output = call.write_contiguous(output, "output", {batch, length, sublayer.width}, given.dtype);
    read_norms(call, sublayer, before, of_output, after);
}

FeedForwardSublayer read_feed_forward(Call& call, nb::handle tokens, nb::handle up, nb::handle gate, nb::handle down,
                                      nb::handle output, const std::string& activation, nb::handle before,
                                      nb::handle of_output, nb::handle after) {
    FeedForwardSublayer given;
    read_sublayer(call, given, tokens, output, before, of_output, after);
    read_feed_forward_layers(call, given, up, gate, down, activation);
    return given;
}

// Reads the problem as well, and the sublayer's heads of queries and results, whose tokens and norms were read.
void read_heads(Call& call, AttentionSublayer& given, nb::handle query, nb::handle key, nb::handle value,
                nb::handle mixed, const AttentionLayers& layers, nb::handle rotation) {
    const Dtype dtype = given.tokens.dtype;
    read_problem_of_cache(call, query, key, value);
    Problem& p = call.problem;
    check_dtype(p.query, "query", dtype);
    require(p.batch == given.tokens.shape[1] && p.queries == given.tokens.shape[2],
            "query: expected the batch and the length of the tokens");
    given.query = call.write(query, "query", {p.batch, p.heads, p.queries, p.head_dim}, dtype);
    given.mixed = write_output(call, mixed, "mixed");
    check_token_major(given.query, "query");
    check_token_major(given.mixed, "mixed");
    read_attention_layers(call, given, layers);
    if (given.key_layer.weight) {
        require(p.queries <= p.keys, "key: expected the new tokens at its end");
        p.key = call.write(key, "key", {p.batch, p.key_heads, p.keys, p.key.shape[3]}, p.key.dtype);
        p.value = call.write(value, "value", {p.batch, p.key_heads, p.keys, p.value.shape[3]}, p.value.dtype);
        require(p.key.stride[3] == 1 && p.value.stride[3] == 1, "key and value: expected contiguous heads");
    }
    given.rotation = read_rotation(call, rotation, dtype, p.queries);
    p.query = given.query;
}

}  // namespace

void bind_sublayers(nb::module_& module) {
    module.def("feed_forward_sublayer", operation(read_feed_forward, feed_forward_sublayer), "tokens"_a, "up"_a,
               "gate"_a.none(), "down"_a, "output"_a, nb::kw_only(), "activation"_a = "identity",
               "before"_a.none() = nb::none(), "of_output"_a.none() = nb::none(), "after"_a.none() = nb::none(),
               "threads"_a = 1, "A feed-forward sublayer of few tokens, with its norms and its residual connection.");
    define<6, 12>(
        module, "attention_sublayer",
        "An attention sublayer of few tokens, with its norms and its residual connection.",
        {"tokens", "query", "key", "value", "mixed", "output"},
        {"query_layer", "key_layer", "value_layer", "output_layer", "before", "of_output", "after", "query_norm",
         "key_norm", "rotation", "softcap", "sinks"},
        [](Call& call, const Objects<6>& arrays, const Objects<12>& further) {
            AttentionSublayer given;
            read_sublayer(call, given, arrays[0], arrays[5], further[4], further[5], further[6]);
            read_heads(call, given, arrays[1], arrays[2], arrays[3], arrays[4],
                       {further[0], further[3], further[1], further[2], further[7], further[8]}, further[9]);
            read_cap_and_sinks(call, further[10], further[11]);
            const nb::gil_scoped_release unlocked;
            attention_sublayer(given, call.problem, call.threads);
        });
}

}  // namespace regard

// Attention by features in the Python module.
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"
#include "scan/features.h"

namespace regard {
namespace {

constexpr int64_t max_dim = 1024, max_features = 4096;

FeatureMap read_map(const std::string& name) {
    if (name == "exponential") return FeatureMap::exponential;
    if (name == "relu") return FeatureMap::relu;
    require(name == "elu", "kind: expected exponential, relu or elu");
    return FeatureMap::elu;
}

FeatureArguments read_arguments(Call& call, nb::handle query, nb::handle key, nb::handle value, nb::handle projection,
                                nb::handle hidden, const std::string& kind, double norm_factor, double floor,
                                double largest_norm, bool causal) {
    FeatureArguments given;
    given.query = call.take(query, "query");
    check_floating(given.query, "query");
    call.problem.query = given.query;
    given.batch = given.query.shape[0];
    given.heads = given.query.shape[1];
    given.queries = given.query.shape[2];
    given.head_dim = given.query.shape[3];
    given.key = call.take(key, "key");
    given.key_heads = given.key.shape[1];
    given.keys = given.key.shape[2];
    given.value_dim = call.take(value, "value").shape[3];
    require(given.head_dim >= 1 && given.head_dim <= max_dim, "query: head_dim is out of range");
    require(given.value_dim >= 1 && given.value_dim <= max_dim, "value: value_dim is out of range");
    require(given.queries <= max_length && given.keys <= max_length, "too many tokens");
    require(given.key_heads >= 1 && given.heads % given.key_heads == 0, "key: the heads do not divide those of query");
    given.key = call.read(key, "key", {given.batch, given.key_heads, given.keys, given.head_dim}, call.dtype());
    given.value = call.read(value, "value", {given.batch, given.key_heads, given.keys, given.value_dim}, call.dtype());
    given.projection = call.take(projection, "projection", accept);
    given.features = given.projection ? given.projection.shape[2] : given.head_dim;
    require(given.features >= 1 && given.features <= max_features, "projection: the features are out of range");
    if (given.projection)
        call.read_contiguous(projection, "projection", {given.features, given.head_dim}, call.accumulation_dtype());
    check_countable({given.batch, given.heads, std::max(given.queries, given.keys), given.features, given.value_dim});
    given.hidden = call.take(hidden, "hidden", accept);
    if (given.hidden) {
        check_dtype(given.hidden, "hidden", Dtype::boolean);
        check_shape(given.hidden, "hidden",
                    {given.batch, given.hidden.shape[1] > 1 ? given.heads : 1, 1, given.keys});
    }
    given.map = read_map(kind);
    given.norm_factor = norm_factor;
    given.floor = floor;
    given.largest_norm = largest_norm;
    given.causal = causal;
    require(!causal || given.queries == given.keys, "causal: expected as many queries as keys");
    return given;
}

// The sums of the forward pass, to be written or read.
FeatureResults read_results(Call& call, const FeatureArguments& given, nb::handle sums, nb::handle log_scale,
                            nb::handle flags) {
    FeatureResults results;
    const int64_t heads = given.sum_heads();
    results.sums = call.write_contiguous(sums, "sums", {given.batch, heads, given.features, given.value_dim + 1},
                                         call.accumulation_dtype());
    results.log_scale = call.write_contiguous(log_scale, "log_scale", {given.batch, heads}, call.accumulation_dtype());
    results.flags = call.write_contiguous(flags, "flags", {given.batch, heads, 2}, Dtype::boolean);
    return results;
}

std::pair<FeatureArguments, FeatureResults> read_forward(
    Call& call, nb::handle query, nb::handle key, nb::handle value, nb::handle projection, nb::handle hidden,
    nb::handle output, nb::handle sums, nb::handle log_scale, nb::handle flags, const std::string& kind,
    double norm_factor, double floor, double largest_norm, bool causal) {
    const FeatureArguments given = read_arguments(call, query, key, value, projection, hidden, kind, norm_factor, floor,
                                                  largest_norm, causal);
    FeatureResults results = read_results(call, given, sums, log_scale, flags);
    results.output =
        call.write(output, "output", {given.batch, given.heads, given.queries, given.value_dim}, call.dtype());
    return {given, results};
}

std::pair<FeatureArguments, FeatureGradients> read_backward(
    Call& call, nb::handle grad_output, nb::handle sums, nb::handle log_scale, nb::handle flags, nb::handle query,
    nb::handle key, nb::handle value, nb::handle projection, nb::handle hidden, nb::handle grad_query,
    nb::handle grad_key, nb::handle grad_value, const std::string& kind, double norm_factor, double floor,
    double largest_norm, bool causal) {
    const FeatureArguments given = read_arguments(call, query, key, value, projection, hidden, kind, norm_factor, floor,
                                                  largest_norm, causal);
    require(!causal || given.heads == given.key_heads, "causal: expected a key head for each query head");
    FeatureGradients gradients;
    gradients.output = call.read(grad_output, "grad_output",
                                 {given.batch, given.heads, given.queries, given.value_dim}, call.dtype());
    gradients.results = read_results(call, given, sums, log_scale, flags);
    gradients.query = call.write_gradient(grad_query, "grad_query", given.query);
    gradients.key = call.write_gradient(grad_key, "grad_key", given.key);
    gradients.value = call.write_gradient(grad_value, "grad_value", given.value);
    return {given, gradients};
}

}  // namespace

void bind_features(nb::module_& module) {
    module.def("feature_attention", operation(read_forward, feature_attention), "query"_a, "key"_a, "value"_a,
               "projection"_a.none(), "hidden"_a.none(), "output"_a, "sums"_a, "log_scale"_a, "flags"_a, "kind"_a,
               "norm_factor"_a, "floor"_a, "largest_norm"_a, "causal"_a, "threads"_a = 1, "Attention by features.");
    module.def("feature_attention_backward", operation(read_backward, feature_attention_backward), "grad_output"_a,
               "sums"_a, "log_scale"_a, "flags"_a, "query"_a, "key"_a, "value"_a, "projection"_a.none(),
               "hidden"_a.none(), "grad_query"_a, "grad_key"_a, "grad_value"_a, "kind"_a, "norm_factor"_a, "floor"_a,
               "largest_norm"_a, "causal"_a, "threads"_a = 1, "Gradients of attention by features.");
}

}  // namespace regard

// Attention to chosen keys, and their choice, in the Python module.
#include <algorithm>

#include "bindings/attention_arguments.h"
#include "bindings/bindings.h"

namespace regard {
namespace {

// Reads query, key and value into the problem, and the positions of the keys of each query.
GatheredArguments read_gathered(Call& call, nb::handle query, nb::handle key, nb::handle value, nb::handle positions,
                                double scale, double dropout, int64_t seed) {
    GatheredArguments given;
    Problem& p = call.problem;
    p.scale = scale;
    call.set_dropout(dropout, seed);
    read_tokens(call, query, key, value);
    given.problem = p;
    const Array chosen = call.take(positions, "positions");
    const int64_t heads = chosen.shape[1];
    require(heads == 1 || heads == p.heads || heads == p.key_heads,
            "positions: expected one head, or as many as key or query has");
    require(chosen.shape[3] < INT32_MAX && p.keys < INT32_MAX, "positions: too many keys for 32 bits");
    check_countable({p.batch, p.heads, p.queries, chosen.shape[3]});
    given.positions =
        call.read(positions, "positions", {p.batch, heads, p.queries, chosen.shape[3]}, Dtype::int32);
    given.count = chosen.shape[3];
    return given;
}

GatheredArguments read_gathered_forward(Call& call, nb::handle query, nb::handle key, nb::handle value,
                                        nb::handle positions, nb::handle output, double scale, double dropout,
                                        int64_t seed) {
    GatheredArguments given = read_gathered(call, query, key, value, positions, scale, dropout, seed);
    given.output = write_output(call, output);
    return given;
}

GatheredArguments read_gathered_backward(Call& call, nb::handle grad_output, nb::handle query, nb::handle key,
                                         nb::handle value, nb::handle positions, nb::handle grad_query,
                                         nb::handle grad_key, nb::handle grad_value, double scale, double dropout,
                                         int64_t seed) {
    GatheredArguments given = read_gathered(call, query, key, value, positions, scale, dropout, seed);
    given.gradients = read_gradients(call, grad_output, grad_query, grad_key, grad_value);
    return given;
}

// Reads query, key and value into the problem, and which blocks of keys each query chose.
ChosenArguments read_chosen(Call& call, nb::handle query, nb::handle key, nb::handle value, nb::handle chosen,
                            int64_t block, nb::handle stop, double scale) {
    ChosenArguments given;
    Problem& p = call.problem;
    p.scale = scale;
    read_tokens(call, query, key, value);
    require(call.dtype() == Dtype::float32 || call.dtype() == Dtype::float64, "query: expected float32 or float64");
    require(p.scale > 0, "scale: expected a number above 0");
    require(block > 0 && block % tile == 0, "block: expected a multiple of 64");
    p.mask.stop = copy_bounds(call, stop, "stop");
    const int64_t blocks = ceil_div(p.keys, block);
    check_countable({p.batch, p.heads, p.queries, blocks, std::max<int64_t>(p.value_dim, 16)});
    given.chosen = call.read_copy(chosen, "chosen", {p.batch, p.heads, p.queries, blocks}, Dtype::boolean);
    given.block = block;
    given.problem = p;
    return given;
}

ChosenArguments read_chosen_forward(Call& call, nb::handle query, nb::handle key, nb::handle value, nb::handle chosen,
                                    nb::handle output, nb::handle normalizer, int64_t block, nb::handle stop,
                                    double scale) {
    ChosenArguments given = read_chosen(call, query, key, value, chosen, block, stop, scale);
    given.output = write_output(call, output);
    given.normalizer = write_normalizer(call, normalizer);
    return given;
}

std::pair<ChosenArguments, TokenGradients> read_chosen_backward(
    Call& call, nb::handle grad_output, nb::handle query, nb::handle key, nb::handle value, nb::handle chosen,
    nb::handle output, nb::handle normalizer, nb::handle grad_query, nb::handle grad_key, nb::handle grad_value,
    int64_t block, nb::handle stop, double scale) {
    ChosenArguments given = read_chosen(call, query, key, value, chosen, block, stop, scale);
    given.output = read_output(call, output);
    given.normalizer = read_normalizer(call, normalizer);
    return {given, read_gradients(call, grad_output, grad_query, grad_key, grad_value)};
}

// Reads queries and compressed keys in float32, the number of visible keys, and the choice to be written.
ImportanceArguments read_importance(Call& call, nb::handle query, nb::handle key, nb::handle visible, nb::handle chosen,
                                    nb::handle certain, int64_t block, int64_t compressed_block, int64_t stride,
                                    int64_t count) {
    ImportanceArguments given;
    given.query = call.take(query, "query");
    check_floating(given.query, "query");
    require(given.query.dtype != Dtype::float64, "query: expected float32 or half precision");
    given.key = call.take(key, "key");
    const int64_t batch = given.query.shape[0], heads = given.query.shape[1], queries = given.query.shape[2];
    const int64_t key_heads = given.key.shape[1], width = given.query.shape[3];
    given.key = call.read(key, "key", {batch, key_heads, given.key.shape[2], width}, Dtype::float32);
    require(heads >= 1 && key_heads >= 1 && heads % key_heads == 0, "query: expected a multiple of key's heads");
    require(width >= 1 && width <= max_head_dim, "query: head_dim is out of range");
    require(queries <= max_length && given.key.shape[2] < INT32_MAX, "query and key: too long");
    const Array counts = call.take(visible, "visible");
    require(counts.shape[2] == 1 || counts.shape[2] == batch, "visible: expected one row, or as many as the batch");
    given.visible = call.read_copy(visible, "visible", {counts.shape[2], queries}, Dtype::int64);
    given.chosen = call.take(chosen, "chosen");
    require(given.chosen.shape[3] < INT32_MAX, "chosen: too many blocks");
    given.chosen = call.write(chosen, "chosen", {batch, key_heads, queries, given.chosen.shape[3]}, Dtype::boolean);
    require(given.chosen.stride[3] == 1 || given.chosen.shape[3] <= 1, "chosen: expected contiguous blocks");
    given.certain = call.write(certain, "certain", {batch, key_heads, queries}, Dtype::boolean);
    require(stride >= 1 && block >= 1 && compressed_block >= 1 && compressed_block <= block && block % stride == 0 &&
                compressed_block % stride == 0 && block <= max_length,
            "block and compressed_block: expected multiples of stride, the first not smaller");
    require(count >= 0 && count <= max_length, "count: expected a number of blocks");
    given.block = block, given.compressed_block = compressed_block, given.stride = stride;
    given.count = std::min(count, given.chosen.shape[3]);
    return given;
}

// Reads scores' queries and keys into the problem, whose heads are those of the positions to be written.
HighestArguments read_highest(Call& call, nb::handle query, nb::handle key, nb::handle weight, nb::handle first,
                              nb::handle positions, bool summed) {
    HighestArguments given;
    Problem& p = call.problem;
    read_query(call, query);
    require(p.query.dtype != Dtype::float64, "query: expected float32 or half precision");
    p.key = call.take(key, "key");
    check_dtype(p.key, "key", call.dtype());
    const Array chosen = call.take(positions, "positions");
    p.heads = chosen.shape[1];
    p.key_heads = p.key.shape[1];
    p.keys = p.key.shape[2];
    p.value_dim = p.head_dim;
    check_shape(p.key, "key", {p.batch, p.key_heads, p.keys, p.head_dim});
    check_sizes(p);
    given.score_heads = p.query.shape[1];
    given.summed = summed;
    require(summed ? p.key_heads == 1 : given.score_heads == p.heads,
            "positions: expected a head for each one of query, or keys of one head for a sum");
    require(given.score_heads >= 1 && given.score_heads <= 4096, "query: too few or too many heads");
    require(p.keys < INT32_MAX, "key: too many keys for 32 bits");
    given.count = chosen.shape[3];
    check_countable({p.batch, p.heads, p.queries, given.count});
    require(given.count <= INT32_MAX / 8, "positions: too many keys of each query");
    read_mask(call);
    given.weight = call.read(weight, "weight", {p.batch, given.score_heads, p.queries, 1}, call.dtype(), accept);
    if (!first.is_none()) {
        const Array flags = call.take(first, "first");
        require(flags.shape[1] == 1 || flags.shape[1] == p.heads, "first: expected one head, or as many as positions");
        given.first = call.read(first, "first", {p.batch, flags.shape[1], 1, p.keys}, Dtype::boolean);
    }
    given.positions = call.write(positions, "positions", {p.batch, p.heads, p.queries, given.count}, Dtype::int32);
    given.problem = p;
    return given;
}

}  // namespace

void bind_selection(nb::module_& module) {
    define<4, 2>(
        module, "highest_keys", "The positions of the keys with the highest scores.",
        {"query", "key", "weight", "positions"}, {"first", "summed"},
        [](Call& call, const Objects<4>& arrays, const Objects<2>& further) {
            const HighestArguments given = read_highest(call, arrays[0], arrays[1], arrays[2], further[0], arrays[3],
                                                        !further[1].is_none() && nb::cast<bool>(further[1]));
            const nb::gil_scoped_release unlocked;
            highest_keys(given, call.threads);
        });
    module.def("chosen_blocks_forward", operation(read_chosen_forward, chosen_blocks_forward), "query"_a, "key"_a,
               "value"_a, "chosen"_a, "output"_a, "normalizer"_a, nb::kw_only(), "block"_a,
               "stop"_a.none() = nb::none(), "scale"_a = 1.0, "threads"_a = 1,
               "Causal attention to the own block and to chosen ones.");
    module.def("chosen_blocks_backward", operation(read_chosen_backward, chosen_blocks_backward), "grad_output"_a,
               "query"_a, "key"_a, "value"_a, "chosen"_a, "output"_a, "normalizer"_a, "grad_query"_a, "grad_key"_a,
               "grad_value"_a, nb::kw_only(), "block"_a, "stop"_a.none() = nb::none(), "scale"_a = 1.0, "threads"_a = 1,
               "Gradients of causal attention to the own block and to chosen ones.");
    module.def("block_importance", operation(read_importance, block_importance), "query"_a, "key"_a, "visible"_a,
               "chosen"_a, "certain"_a, nb::kw_only(), "block"_a, "compressed_block"_a, "stride"_a, "count"_a,
               "threads"_a = 1, "The blocks with the highest weights of compressed attention.");
    module.def("gathered_forward", operation(read_gathered_forward, gathered_forward), "query"_a, "key"_a, "value"_a,
               "positions"_a, "output"_a, nb::kw_only(), "scale"_a = 1.0, "dropout"_a = 0.0, "seed"_a = 0,
               "threads"_a = 1, "Attention to chosen keys.");
    module.def("gathered_backward", operation(read_gathered_backward, gathered_backward), "grad_output"_a, "query"_a,
               "key"_a, "value"_a, "positions"_a, "grad_query"_a, "grad_key"_a, "grad_value"_a, nb::kw_only(),
               "scale"_a = 1.0, "dropout"_a = 0.0, "seed"_a = 0, "threads"_a = 1,
               "Gradients of attention to chosen keys.");
}

}  // namespace regard

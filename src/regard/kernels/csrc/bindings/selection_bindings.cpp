// Attention to chosen keys in the Python module.
#include <algorithm>

#include "bindings/bindings.h"
#include "drivers.h"
#include "selection/chosen_gradients.h"

namespace regard {

void bind_selection(nb::module_& module) {
    define<4, 2>(
        module, "highest_keys", "The positions of the keys with the highest scores.",
        {"query", "key", "weight", "positions"}, {"first", "summed"},
        [](Call& call, const Objects<4>& arrays, const Objects<2>& further) {
            const HighestArguments given = call.read_highest(arrays[0], arrays[1], arrays[2], further[0], arrays[3],
                                                             !further[1].is_none() && nb::cast<bool>(further[1]));
            const nb::gil_scoped_release unlocked;
            highest_keys(given, call.threads());
        });
    module.def(
        "chosen_blocks_forward",
        [](nb::handle query, nb::handle key, nb::handle value, nb::handle chosen, nb::handle output,
           nb::handle normalizer, int64_t block, nb::handle stop, double scale, int threads) {
            Options options;
            options.start = nb::none();
            options.stop = stop;
            options.scale = scale;
            options.threads = threads;
            Call call(options);
            ChosenArguments given = call.read_chosen(query, key, value, chosen, block);
            given.output = write_output(call, output);
            given.normalizer = write_normalizer(call, normalizer);
            const nb::gil_scoped_release unlocked;
            chosen_blocks_forward(given, threads);
        },
        "query"_a, "key"_a, "value"_a, "chosen"_a, "output"_a, "normalizer"_a, nb::kw_only(), "block"_a,
        "stop"_a.none() = nb::none(), "scale"_a = 1.0, "threads"_a = 1,
        "Causal attention to the own block and to chosen ones.");
    module.def(
        "chosen_blocks_backward",
        [](nb::handle grad_output, nb::handle query, nb::handle key, nb::handle value, nb::handle chosen,
           nb::handle output, nb::handle normalizer, nb::handle grad_query, nb::handle grad_key, nb::handle grad_value,
           int64_t block, nb::handle stop, double scale, int threads) {
            Options options;
            options.start = nb::none();
            options.stop = stop;
            options.scale = scale;
            options.threads = threads;
            Call call(options);
            ChosenArguments given = call.read_chosen(query, key, value, chosen, block);
            const Problem& p = call.problem;
            given.output = call.read(output, "output", {p.batch, p.heads, p.queries, p.value_dim}, call.dtype());
            given.normalizer = read_normalizer(call, normalizer);
            ChosenGradients gradients;
            gradients.output =
                call.read(grad_output, "grad_output", {p.batch, p.heads, p.queries, p.value_dim}, call.dtype());
            gradients.query = call.write(grad_query, "grad_query", {p.batch, p.heads, p.queries, p.head_dim}, call.dtype());
            gradients.key = call.write(grad_key, "grad_key", {p.batch, p.key_heads, p.keys, p.head_dim}, call.dtype());
            gradients.value =
                call.write(grad_value, "grad_value", {p.batch, p.key_heads, p.keys, p.value_dim}, call.dtype());
            const nb::gil_scoped_release unlocked;
            chosen_blocks_backward(given, gradients, threads);
        },
        "grad_output"_a, "query"_a, "key"_a, "value"_a, "chosen"_a, "output"_a, "normalizer"_a, "grad_query"_a,
        "grad_key"_a, "grad_value"_a, nb::kw_only(), "block"_a, "stop"_a.none() = nb::none(), "scale"_a = 1.0,
        "threads"_a = 1, "Gradients of causal attention to the own block and to chosen ones.");
    module.def(
        "block_importance",
        [](nb::handle query, nb::handle key, nb::handle visible, nb::handle chosen, nb::handle certain, int64_t block,
           int64_t compressed_block, int64_t stride, int64_t count, int threads) {
            Options options;
            options.threads = threads;
            Call call(options);
            ImportanceArguments given = call.read_importance(query, key, visible, chosen, certain);
            if (stride < 1 || block < 1 || compressed_block < 1 || compressed_block > block || block % stride ||
                compressed_block % stride || block > max_length)
                throw nb::value_error("block and compressed_block: expected multiples of stride, the first not smaller");
            if (count < 0 || count > max_length) throw nb::value_error("count: expected a number of blocks");
            given.block = block, given.compressed_block = compressed_block, given.stride = stride;
            given.count = std::min(count, given.chosen.shape[3]);
            const nb::gil_scoped_release unlocked;
            block_importance(given, threads);
        },
        "query"_a, "key"_a, "visible"_a, "chosen"_a, "certain"_a, nb::kw_only(), "block"_a, "compressed_block"_a,
        "stride"_a, "count"_a, "threads"_a = 1, "The blocks with the highest weights of compressed attention.");
    module.def(
        "gathered_forward",
        [](nb::handle query, nb::handle key, nb::handle value, nb::handle positions, nb::handle output, double scale,
           double dropout, int64_t seed, int threads) {
            Options options;
            options.scale = scale;
            options.dropout = dropout;
            options.seed = seed;
            options.threads = threads;
            Call call(options);
            GatheredArguments given = call.read_gathered(query, key, value, positions);
            given.output = write_output(call, output);
            const nb::gil_scoped_release unlocked;
            gathered_forward(given, threads);
        },
        "query"_a, "key"_a, "value"_a, "positions"_a, "output"_a, nb::kw_only(), "scale"_a = 1.0, "dropout"_a = 0.0,
        "seed"_a = 0, "threads"_a = 1, "Attention to chosen keys.");
    module.def(
        "gathered_backward",
        [](nb::handle grad_output, nb::handle query, nb::handle key, nb::handle value, nb::handle positions,
           nb::handle grad_query, nb::handle grad_key, nb::handle grad_value, double scale, double dropout, int64_t seed,
           int threads) {
            Options options;
            options.scale = scale;
            options.dropout = dropout;
            options.seed = seed;
            options.threads = threads;
            Call call(options);
            GatheredArguments given = call.read_gathered(query, key, value, positions);
            const Problem& p = call.problem;
            given.grad_output =
                call.read(grad_output, "grad_output", {p.batch, p.heads, p.queries, p.value_dim}, call.dtype());
            given.grad_query = call.write(grad_query, "grad_query", {p.batch, p.heads, p.queries, p.head_dim}, call.dtype());
            given.grad_key = call.write(grad_key, "grad_key", {p.batch, p.key_heads, p.keys, p.head_dim}, call.dtype());
            given.grad_value =
                call.write(grad_value, "grad_value", {p.batch, p.key_heads, p.keys, p.value_dim}, call.dtype());
            const nb::gil_scoped_release unlocked;
            gathered_backward(given, threads);
        },
        "grad_output"_a, "query"_a, "key"_a, "value"_a, "positions"_a, "grad_query"_a, "grad_key"_a, "grad_value"_a,
        nb::kw_only(), "scale"_a = 1.0, "dropout"_a = 0.0, "seed"_a = 0, "threads"_a = 1,
        "Gradients of attention to chosen keys.");
}

}  // namespace regard

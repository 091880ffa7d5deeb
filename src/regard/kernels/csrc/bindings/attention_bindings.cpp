// Softmax and sigmoid attention in the Python module: forward, backward, statistics, and keys in pages.
#include "bindings/bindings.h"
#include "drivers.h"

namespace regard {
namespace {

Array write_rounding(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    if (!object.is_none() && call.dtype() != Dtype::bfloat16 && call.dtype() != Dtype::float16)
        throw nb::value_error("rounding: expected None, since nothing is cut off in this dtype");
    return call.write(object, "rounding", {p.batch, p.heads, p.queries, p.value_dim}, call.dtype(), accept);
}

void bind_forward(nb::module_& module) {
    define<5, 4>(
        module, "forward", "Attention, and the logarithm of each row's sum.", {"query", "key", "value", "output", "lse"},
        {"rounding", "normalizer", "softcap", "sinks"},
        [](Call& call, const Objects<5>& arrays, const Objects<4>& further) {
            call.read_problem(arrays[0], arrays[1], arrays[2]);
            call.read_cap_and_sinks(further[2], further[3]);
            const ForwardResults results = {write_output(call, arrays[3]), write_lse(call, arrays[4]),
                                            write_rounding(call, further[0]), write_normalizer(call, further[1])};
            const nb::gil_scoped_release unlocked;
            forward(call.problem, results, call.threads());
        });
}

void bind_backward(nb::module_& module) {
    define<11, 12>(
        module, "backward", "Gradients of attention, and of its statistics where theirs are given.",
        {"grad_output", "query", "key", "value", "output", "normalizer", "grad_query", "grad_key", "grad_value",
         "grad_bias", "grad_table"},
        {"grad_lse", "log_weight", "column", "top_keys", "top_grad", "rows", "rows_grad", "rounding", "softcap", "sinks",
         "grad_sinks", "sink_weight_grad"},
        [](Call& call, const Objects<11>& arrays, const Objects<12>& further) {
            call.read_problem(arrays[1], arrays[2], arrays[3]);
            call.read_cap_and_sinks(further[8], further[9]);
            const Problem& p = call.problem;
            const Call::Shape of_queries{p.batch, p.heads, p.queries};
            const Call::Shape outputs{p.batch, p.heads, p.queries, p.value_dim};
            const Array output = call.read(arrays[4], "output", outputs, call.dtype());
            const Array normalizer = read_normalizer(call, arrays[5]);
            Gradients gradients;
            gradients.output = call.read(arrays[0], "grad_output", outputs, call.dtype());
            gradients.query =
                call.write(arrays[6], "grad_query", {p.batch, p.heads, p.queries, p.head_dim}, call.dtype());
            gradients.key = call.write(arrays[7], "grad_key", {p.batch, p.key_heads, p.keys, p.head_dim}, call.dtype());
            gradients.value =
                call.write(arrays[8], "grad_value", {p.batch, p.key_heads, p.keys, p.value_dim}, call.dtype());
            gradients.bias = write_gradient(call, arrays[9], "grad_bias", p.bias);
            gradients.table = write_gradient(call, arrays[10], "grad_table", p.table);
            gradients.lse = call.read(further[0], "grad_lse", of_queries, call.accumulation_dtype(), accept);
            gradients.log_weight = call.read(further[1], "log_weight", of_queries, call.accumulation_dtype(), accept);
            gradients.column =
                call.read(further[2], "column", {p.batch, p.heads, p.keys}, call.accumulation_dtype(), accept);
            gradients.top_keys = call.take(further[3], "top_keys", accept);
            const int64_t top = gradients.top_keys.shape[3];
            const Call::Shape tops{p.batch, p.heads, p.queries, top};
            call.read(further[3], "top_keys", tops, Dtype::int64, accept);
            gradients.top = call.read(further[4], "top_grad", tops, call.accumulation_dtype(), accept);
            gradients.rows = call.read_indices(further[5], "rows", p.queries, accept);
            const int64_t rows = gradients.rows.shape[3];
            gradients.rows_weights =
                call.read(further[6], "rows_grad", {p.batch, p.heads, rows, p.keys}, call.accumulation_dtype(), accept);
            Call::require_pair(gradients.top, "top_grad", gradients.top_keys, "top_keys");
            Call::require_pair(gradients.rows_weights, "rows_grad", gradients.rows, "rows");
            const Array rounding = call.read(further[7], "rounding", outputs, call.dtype(), accept);
            gradients.sinks = write_gradient(call, further[10], "grad_sinks", p.sinks);
            gradients.sink_weight =
                call.read(further[11], "sink_weight_grad", of_queries, call.accumulation_dtype(), accept);
            Call::require_pair(gradients.sink_weight, "sink_weight_grad", p.sinks, "sinks");
            const nb::gil_scoped_release unlocked;
            backward(p, {output, {}, rounding, normalizer}, gradients, call.threads());
        });
}

void bind_observe(nb::module_& module) {
    define<11, 5>(
        module, "observe", "Attention with statistics of its weights.",
        {"query", "key", "value", "output", "lse", "entropy", "received", "top_keys", "top_weights", "rows",
         "rows_weights"},
        {"rounding", "normalizer", "softcap", "sinks", "sink_weight"},
        [](Call& call, const Objects<11>& arrays, const Objects<5>& further) {
            call.read_problem(arrays[0], arrays[1], arrays[2]);
            call.read_cap_and_sinks(further[2], further[3]);
            const Problem& p = call.problem;
            const ForwardResults results = {write_output(call, arrays[3]), write_lse(call, arrays[4]),
                                            write_rounding(call, further[0]), write_normalizer(call, further[1])};
            Statistics statistics;
            statistics.entropy =
                call.write(arrays[5], "entropy", {p.batch, p.heads, p.queries}, call.accumulation_dtype(), accept);
            statistics.received =
                call.write(arrays[6], "received", {p.batch, p.heads, p.keys}, call.accumulation_dtype(), accept);
            const int64_t top = call.take(arrays[7], "top_keys", accept).shape[3];
            const Call::Shape tops{p.batch, p.heads, p.queries, top};
            statistics.top_keys = call.write(arrays[7], "top_keys", tops, Dtype::int64, accept);
            statistics.top_weights = call.write(arrays[8], "top_weights", tops, call.accumulation_dtype(), accept);
            statistics.rows = call.read_indices(arrays[9], "rows", p.queries, accept);
            const int64_t rows = statistics.rows.shape[3];
            statistics.rows_weights = call.write(arrays[10], "rows_weights", {p.batch, p.heads, rows, p.keys},
                                                 call.accumulation_dtype(), accept);
            statistics.sink_weight =
                call.write(further[4], "sink_weight", {p.batch, p.heads, p.queries}, call.accumulation_dtype(), accept);
            Call::require_pair(statistics.sink_weight, "sink_weight", p.sinks, "sinks");
            Call::require_pair(statistics.top_weights, "top_weights", statistics.top_keys, "top_keys");
            Call::require_pair(statistics.top_keys, "top_keys", statistics.top_weights, "top_weights");
            Call::require_pair(statistics.rows_weights, "rows_weights", statistics.rows, "rows");
            Call::require_pair(statistics.rows, "rows", statistics.rows_weights, "rows_weights");
            const nb::gil_scoped_release unlocked;
            observe(p, results, statistics, call.threads());
        });
}

void bind_sigmoid(nb::module_& module) {
    define<4, 2>(
        module, "sigmoid_forward", "Attention whose weights are sigmoids of the scores.",
        {"query", "key", "value", "output"}, {"score_bias", "normalizer"},
        [](Call& call, const Objects<4>& arrays, const Objects<2>& further) {
            call.read_problem(arrays[0], arrays[1], arrays[2]);
            const Array score_bias = call.read(further[0], "score_bias", {1}, Dtype::float64, accept);
            const ForwardResults results = {write_output(call, arrays[3]), {}, {}, write_normalizer(call, further[1])};
            const nb::gil_scoped_release unlocked;
            sigmoid_forward(call.problem, score_bias, results, call.threads());
        });
    define<10, 0>(
        module, "sigmoid_backward", "Gradients of attention whose weights are sigmoids of the scores.",
        {"grad_output", "query", "key", "value", "normalizer", "grad_query", "grad_key", "grad_value", "grad_bias",
         "grad_table"},
        {},
        [](Call& call, const Objects<10>& arrays, const Objects<0>&) {
            call.read_problem(arrays[1], arrays[2], arrays[3]);
            const Problem& p = call.problem;
            const Array normalizer = read_normalizer(call, arrays[4]);
            Gradients gradients;
            gradients.output =
                call.read(arrays[0], "grad_output", {p.batch, p.heads, p.queries, p.value_dim}, call.dtype());
            gradients.query =
                call.write(arrays[5], "grad_query", {p.batch, p.heads, p.queries, p.head_dim}, call.dtype());
            gradients.key = call.write(arrays[6], "grad_key", {p.batch, p.key_heads, p.keys, p.head_dim}, call.dtype());
            gradients.value =
                call.write(arrays[7], "grad_value", {p.batch, p.key_heads, p.keys, p.value_dim}, call.dtype());
            gradients.bias = write_gradient(call, arrays[8], "grad_bias", p.bias);
            gradients.table = write_gradient(call, arrays[9], "grad_table", p.table);
            const nb::gil_scoped_release unlocked;
            sigmoid_backward(p, normalizer, gradients, call.threads());
        });
}

void bind_paged(nb::module_& module) {
    module.def(
        "paged",
        [](nb::handle query, nb::handle key_pages, nb::handle value_pages, nb::handle page_table, nb::handle lengths,
           nb::handle output_array, nb::handle lse_array, nb::handle softcap, nb::handle sinks, double scale,
           std::optional<int64_t> low, std::optional<int64_t> high, int threads) {
            Options options;
            options.low = low;
            options.high = high;
            options.scale = scale;
            options.threads = threads;
            Call call(options);
            const Pages pages = call.read_paged_problem(query, key_pages, value_pages, page_table, lengths);
            call.read_cap_and_sinks(softcap, sinks);
            const ForwardResults results = {write_output(call, output_array), write_lse(call, lse_array), {}, {}};
            const nb::gil_scoped_release unlocked;
            paged(call.problem, pages, results, threads);
        },
        "query"_a, "key_pages"_a, "value_pages"_a, "page_table"_a, "lengths"_a, "output"_a, "lse"_a.none(),
        nb::kw_only(), "softcap"_a = nb::none(), "sinks"_a = nb::none(), "scale"_a = 1.0, "low"_a = nb::none(),
        "high"_a = nb::none(), "threads"_a = 1, "Attention to keys and values that lie in pages.");
}

}  // namespace

void bind_attention(nb::module_& module) {
    bind_forward(module);
    bind_backward(module);
    bind_observe(module);
    bind_sigmoid(module);
    bind_paged(module);
}

}  // namespace regard

// Softmax and sigmoid attention in the Python module: forward, backward, statistics, and keys in pages.
#include "bindings/attention_arguments.h"
#include "bindings/bindings.h"
#include "decode/stored_rows.h"

namespace regard {
namespace {

void check_rounding(const Call& call, nb::handle object) {
    if (!object.is_none() && call.dtype() != Dtype::bfloat16 && call.dtype() != Dtype::float16)
        throw nb::value_error("rounding: expected None, since nothing is cut off in this dtype");
}

ForwardResults write_results(Call& call, nb::handle output, nb::handle lse, nb::handle rounding, nb::handle normalizer) {
    const Array of_output = write_output(call, output), of_lse = write_lse(call, lse);
    check_rounding(call, rounding);
    return {of_output, of_lse, write_output(call, rounding, "rounding", accept), write_normalizer(call, normalizer)};
}

void bind_forward(nb::module_& module) {
    define<5, 6>(
        module, "forward", "Attention, and the logarithm of each row's sum.", {"query", "key", "value", "output", "lse"},
        {"rounding", "normalizer", "softcap", "sinks", "query_rows", "key_rows"},
        [](Call& call, const Objects<5>& arrays, const Objects<6>& further) {
            read_problem(call, arrays[0], arrays[1], arrays[2], max_head_dim, further[4], further[5]);
            read_cap_and_sinks(call, further[2], further[3]);
            const ForwardResults results = write_results(call, arrays[3], arrays[4], further[0], further[1]);
            const nb::gil_scoped_release unlocked;
            forward(call.problem, results, call.threads);
        });
}

void bind_backward(nb::module_& module) {
    define<11, 14>(
        module, "backward", "Gradients of attention, and of its statistics where theirs are given.",
        {"grad_output", "query", "key", "value", "output", "normalizer", "grad_query", "grad_key", "grad_value",
         "grad_bias", "grad_table"},
        {"grad_lse", "log_weight", "column", "top_keys", "top_grad", "rows", "rows_grad", "rounding", "softcap", "sinks",
         "grad_sinks", "sink_weight_grad", "query_rows", "key_rows"},
        [](Call& call, const Objects<11>& arrays, const Objects<14>& further) {
            read_problem(call, arrays[1], arrays[2], arrays[3], max_head_dim, further[12], further[13]);
            read_cap_and_sinks(call, further[8], further[9]);
            const Problem& p = call.problem;
            const auto read_sums = [&](nb::handle object, const char* name, Call::Shape shape) {
                return call.read(object, name, shape, call.accumulation_dtype(), accept);
            };
            const Call::Shape of_queries{p.batch, p.heads, p.queries};
            const Array output = read_output(call, arrays[4]), normalizer = read_normalizer(call, arrays[5]);
            Gradients g(read_gradients(call, arrays[0], arrays[6], arrays[7], arrays[8], arrays[9], arrays[10]));
            g.lse = read_sums(further[0], "grad_lse", of_queries);
            g.log_weight = read_sums(further[1], "log_weight", of_queries);
            g.column = read_sums(further[2], "column", {p.batch, p.heads, p.keys});
            const Call::Shape tops{p.batch, p.heads, p.queries, call.take(further[3], "top_keys", accept).shape[3]};
            g.top_keys = call.read(further[3], "top_keys", tops, Dtype::int64, accept);
            g.top = read_sums(further[4], "top_grad", tops);
            g.rows = call.read_indices(further[5], "rows", p.queries, accept);
            g.rows_weights = read_sums(further[6], "rows_grad", {p.batch, p.heads, g.rows.shape[3], p.keys});
            require_pair(g.top, "top_grad", g.top_keys, "top_keys");
            require_pair(g.rows_weights, "rows_grad", g.rows, "rows");
            const Array rounding = read_output(call, further[7], "rounding", accept);
            g.sinks = call.write_gradient(further[10], "grad_sinks", p.sinks, call.accumulation_dtype(), accept);
            g.sink_weight = read_sums(further[11], "sink_weight_grad", of_queries);
            require_pair(g.sink_weight, "sink_weight_grad", p.sinks, "sinks");
            const nb::gil_scoped_release unlocked;
            backward(p, {output, {}, rounding, normalizer}, g, call.threads);
        });
}

void bind_observe(nb::module_& module) {
    define<11, 5>(
        module, "observe", "Attention with statistics of its weights.",
        {"query", "key", "value", "output", "lse", "entropy", "received", "top_keys", "top_weights", "rows",
         "rows_weights"},
        {"rounding", "normalizer", "softcap", "sinks", "sink_weight"},
        [](Call& call, const Objects<11>& arrays, const Objects<5>& further) {
            read_problem(call, arrays[0], arrays[1], arrays[2]);
            read_cap_and_sinks(call, further[2], further[3]);
            const Problem& p = call.problem;
            const auto write_sums = [&](nb::handle object, const char* name, Call::Shape shape) {
                return call.write(object, name, shape, call.accumulation_dtype(), accept);
            };
            const ForwardResults results = write_results(call, arrays[3], arrays[4], further[0], further[1]);
            Statistics s;
            s.entropy = write_sums(arrays[5], "entropy", {p.batch, p.heads, p.queries});
            s.received = write_sums(arrays[6], "received", {p.batch, p.heads, p.keys});
            const Call::Shape tops{p.batch, p.heads, p.queries, call.take(arrays[7], "top_keys", accept).shape[3]};
            s.top_keys = call.write(arrays[7], "top_keys", tops, Dtype::int64, accept);
            s.top_weights = write_sums(arrays[8], "top_weights", tops);
            s.rows = call.read_indices(arrays[9], "rows", p.queries, accept);
            s.rows_weights = write_sums(arrays[10], "rows_weights", {p.batch, p.heads, s.rows.shape[3], p.keys});
            s.sink_weight = write_sums(further[4], "sink_weight", {p.batch, p.heads, p.queries});
            require_pair(s.sink_weight, "sink_weight", p.sinks, "sinks");
            require_pair(s.top_weights, "top_weights", s.top_keys, "top_keys");
            require_pair(s.top_keys, "top_keys", s.top_weights, "top_weights");
            require_pair(s.rows_weights, "rows_weights", s.rows, "rows");
            require_pair(s.rows, "rows", s.rows_weights, "rows_weights");
            const nb::gil_scoped_release unlocked;
            observe(p, results, s, call.threads);
        });
}

void bind_sigmoid(nb::module_& module) {
    define<4, 2>(
        module, "sigmoid_forward", "Attention whose weights are sigmoids of the scores.",
        {"query", "key", "value", "output"}, {"score_bias", "normalizer"},
        [](Call& call, const Objects<4>& arrays, const Objects<2>& further) {
            read_problem(call, arrays[0], arrays[1], arrays[2]);
            const Array score_bias = call.read(further[0], "score_bias", {1}, Dtype::float64, accept);
            const ForwardResults results = {write_output(call, arrays[3]), {}, {}, write_normalizer(call, further[1])};
            const nb::gil_scoped_release unlocked;
            sigmoid_forward(call.problem, score_bias, results, call.threads);
        });
    define<10, 0>(
        module, "sigmoid_backward", "Gradients of attention whose weights are sigmoids of the scores.",
        {"grad_output", "query", "key", "value", "normalizer", "grad_query", "grad_key", "grad_value", "grad_bias",
         "grad_table"},
        {},
        [](Call& call, const Objects<10>& arrays, const Objects<0>&) {
            read_problem(call, arrays[1], arrays[2], arrays[3]);
            const Array normalizer = read_normalizer(call, arrays[4]);
            const TokenGradients gradients =
                read_gradients(call, arrays[0], arrays[5], arrays[6], arrays[7], arrays[8], arrays[9]);
            const nb::gil_scoped_release unlocked;
            sigmoid_backward(call.problem, normalizer, gradients, call.threads);
        });
}

// Reads a query and paged keys and values into the problem.
Pages read_pages(Call& call, nb::handle query, nb::handle key_pages, nb::handle value_pages, nb::handle page_table,
                 nb::handle lengths, nb::handle counts) {
    Problem& p = call.problem;
    read_query(call, query);
    Pages pages;
    pages.key = call.take(key_pages, "key_pages");
    pages.value = call.take(value_pages, "value_pages");
    const int64_t count = pages.key.shape[0], page_size = pages.key.shape[2];
    p.key_heads = pages.key.shape[1];
    check_stored(pages.key, "key_pages", pages.value, "value_pages", call.dtype());
    p.value_dim = numbers_in_row(pages.value.dtype, pages.value.shape[3]);
    check_shape(pages.key, "key_pages", {count, p.key_heads, page_size, stored_width(pages.key.dtype, p.head_dim)});
    check_shape(pages.value, "value_pages", {count, p.key_heads, page_size, pages.value.shape[3]});
    read_page_table(call, pages, page_table, lengths, counts);
    return pages;
}

void bind_paged(nb::module_& module) {
    module.def(
        "paged",
        [](nb::handle query, nb::handle key_pages, nb::handle value_pages, nb::handle page_table, nb::handle lengths,
           nb::handle counts, nb::handle output_array, nb::handle lse_array, nb::handle softcap, nb::handle sinks,
           double scale, std::optional<int64_t> low, std::optional<int64_t> high, int threads) {
            Call call(threads);
            const Pages pages = read_pages(call, query, key_pages, value_pages, page_table, lengths, counts);
            call.problem.scale = scale;
            read_band(call.problem, low, high);
            read_cap_and_sinks(call, softcap, sinks);
            const ForwardResults results = {write_output(call, output_array), write_lse(call, lse_array), {}, {}};
            const nb::gil_scoped_release unlocked;
            paged(call.problem, pages, results, threads);
        },
        "query"_a, "key_pages"_a, "value_pages"_a, "page_table"_a, "lengths"_a,
        "counts"_a.none(), "output"_a, "lse"_a.none(), nb::kw_only(), "softcap"_a = nb::none(), "sinks"_a = nb::none(), "scale"_a = 1.0, "low"_a = nb::none(),
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

// The Python module regard.kernels._native. Its functions fill arrays that the caller allocated; signatures:
// _native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "array.h"
#include "cpu.h"
#include "drivers.h"
#include "openmp_runtime.h"
#include "parallel.h"
#include "sorted_tokens.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace regard {
namespace {

template <size_t count>
using Objects = std::array<nb::handle, count>;
template <size_t count>
using Names = std::array<const char*, count>;
template <size_t>
using Object = nb::handle;

// Defines an operation: positional arrays, keyword arrays, then the options that all operations share.
template <size_t... Positional, size_t... Keyword>
void define(nb::module_& module, const char* name, const char* doc, const Names<sizeof...(Positional)>& positional,
            const Names<sizeof...(Keyword)>& keyword, std::index_sequence<Positional...>, std::index_sequence<Keyword...>,
            void (*run)(Call&, const Objects<sizeof...(Positional)>&, const Objects<sizeof...(Keyword)>&)) {
    module.def(
        name,
        [run](Object<Positional>... arrays, Object<Keyword>... further, std::optional<int64_t> low,
              std::optional<int64_t> high, nb::handle start, nb::handle stop, nb::handle row_start, nb::handle key_tile,
              nb::handle bitmap, nb::handle bitmaps, nb::handle dense, double scale, nb::handle bias, nb::handle table,
              int64_t table_lowest, double dropout, int64_t seed, int threads) {
            const Options options{low,   high, start, stop,  row_start,    key_tile, bitmap, bitmaps,
                                  dense, scale, bias, table, table_lowest, dropout,  seed,   threads};
            Call call(options);
            run(call, {arrays...}, {further...});
        },
        nb::arg(positional[Positional]).none()..., nb::kw_only(), (nb::arg(keyword[Keyword]).none() = nb::none())...,
        "low"_a = nb::none(), "high"_a = nb::none(), "start"_a.none() = nb::none(), "stop"_a.none() = nb::none(),
        "row_start"_a.none() = nb::none(), "key_tile"_a.none() = nb::none(), "bitmap"_a.none() = nb::none(),
        "bitmaps"_a.none() = nb::none(), "dense"_a.none() = nb::none(), "scale"_a = 1.0, "bias"_a.none() = nb::none(),
        "table"_a.none() = nb::none(), "table_lowest"_a = 0, "dropout"_a = 0.0, "seed"_a = 0, "threads"_a = 1, doc);
}

template <size_t positional, size_t keyword>
void define(nb::module_& module, const char* name, const char* doc, const Names<positional>& arrays,
            const Names<keyword>& further, void (*run)(Call&, const Objects<positional>&, const Objects<keyword>&)) {
    define(module, name, doc, arrays, further, std::make_index_sequence<positional>(),
           std::make_index_sequence<keyword>(), run);
}

constexpr auto accept = Call::None::accept;

Array write_output(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.write(object, "output", {p.batch, p.heads, p.queries, p.value_dim}, call.dtype());
}

Array write_lse(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.write(object, "lse", {p.batch, p.heads, p.queries}, call.accumulation_dtype(), accept);
}

Array write_normalizer(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.write(object, "normalizer", {p.batch, p.heads, p.queries, 2}, call.accumulation_dtype(), accept);
}

Array read_normalizer(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.read(object, "normalizer", {p.batch, p.heads, p.queries, 2}, call.accumulation_dtype());
}

Array write_rounding(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    if (!object.is_none() && call.dtype() != Dtype::bfloat16 && call.dtype() != Dtype::float16)
        throw nb::value_error("rounding: expected None, since nothing is cut off in this dtype");
    return call.write(object, "rounding", {p.batch, p.heads, p.queries, p.value_dim}, call.dtype(), accept);
}

// The gradient of an argument that may be absent: of the argument's shape, in the dtype of sums.
Array write_gradient(Call& call, nb::handle object, const char* name, const Array& of) {
    if (object.is_none()) return {};
    if (!of) throw nb::value_error((std::string(name) + ": there is nothing it would be the gradient of").c_str());
    return call.write(object, name, {of.shape[0], of.shape[1], of.shape[2], of.shape[3]}, call.accumulation_dtype());
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

void bind_additive(nb::module_& module) {
    define<6, 1>(
        module, "additive_forward", "Additive attention, and the logarithm of each row's sum.",
        {"of_query", "of_key", "vector", "value", "output", "lse"}, {"normalizer"},
        [](Call& call, const Objects<6>& arrays, const Objects<1>& further) {
            call.read_problem(arrays[0], arrays[1], arrays[3], INT64_MAX);
            const Problem& p = call.problem;
            const Array vector = call.read(arrays[2], "vector", {p.heads, p.head_dim}, call.dtype());
            const Additive additive{p.query, p.key, vector};
            const ForwardResults results = {write_output(call, arrays[4]), write_lse(call, arrays[5]), {},
                                            write_normalizer(call, further[0])};
            const nb::gil_scoped_release unlocked;
            additive_forward(p, additive, results, call.threads());
        });
    define<13, 1>(
        module, "additive_backward", "Gradients of additive attention.",
        {"grad_output", "of_query", "of_key", "vector", "value", "output", "normalizer", "grad_of_query",
         "grad_of_key", "grad_vector", "grad_value", "grad_bias", "grad_table"},
        {"grad_lse"},
        [](Call& call, const Objects<13>& arrays, const Objects<1>& further) {
            call.read_problem(arrays[1], arrays[2], arrays[4], INT64_MAX);
            const Problem& p = call.problem;
            const Array vector = call.read(arrays[3], "vector", {p.heads, p.head_dim}, call.dtype());
            const Additive additive{p.query, p.key, vector};
            const Call::Shape outputs{p.batch, p.heads, p.queries, p.value_dim};
            const Array output = call.read(arrays[5], "output", outputs, call.dtype());
            const Array normalizer = read_normalizer(call, arrays[6]);
            AdditiveGradients gradients;
            gradients.output = call.read(arrays[0], "grad_output", outputs, call.dtype());
            gradients.of_query =
                call.write(arrays[7], "grad_of_query", {p.batch, p.heads, p.queries, p.head_dim}, call.dtype());
            gradients.of_key =
                call.write(arrays[8], "grad_of_key", {p.batch, p.key_heads, p.keys, p.head_dim}, call.dtype());
            gradients.vector = call.write(arrays[9], "grad_vector", {p.heads, p.head_dim}, call.accumulation_dtype());
            gradients.value =
                call.write(arrays[10], "grad_value", {p.batch, p.key_heads, p.keys, p.value_dim}, call.dtype());
            gradients.bias = write_gradient(call, arrays[11], "grad_bias", p.bias);
            gradients.table = write_gradient(call, arrays[12], "grad_table", p.table);
            gradients.lse =
                call.read(further[0], "grad_lse", {p.batch, p.heads, p.queries}, call.accumulation_dtype(), accept);
            const nb::gil_scoped_release unlocked;
            additive_backward(p, additive, {output, {}, {}, normalizer}, gradients, call.threads());
        });
}

void bind_paged(nb::module_& module) {
    module.def(
        "paged",
        [](nb::handle query, nb::handle key_pages, nb::handle value_pages, nb::handle page_table, nb::handle lengths,
           nb::handle output_array, nb::handle lse_array, double scale, std::optional<int64_t> low,
           std::optional<int64_t> high, int threads) {
            Options options;
            options.low = low;
            options.high = high;
            options.scale = scale;
            options.threads = threads;
            Call call(options);
            const Pages pages = call.read_paged_problem(query, key_pages, value_pages, page_table, lengths);
            const ForwardResults results = {write_output(call, output_array), write_lse(call, lse_array), {}, {}};
            const nb::gil_scoped_release unlocked;
            paged(call.problem, pages, results, threads);
        },
        "query"_a, "key_pages"_a, "value_pages"_a, "page_table"_a, "lengths"_a, "output"_a, "lse"_a.none(),
        nb::kw_only(), "scale"_a = 1.0, "low"_a = nb::none(), "high"_a = nb::none(), "threads"_a = 1,
        "Attention to keys and values that lie in pages.");
}

void bind_dropout(nb::module_& module) {
    module.def(
        "dropout",
        [](nb::handle tokens, nb::handle output, double probability, int64_t seed, int threads) {
            Options options;
            options.dropout = probability;
            options.seed = seed;
            options.threads = threads;
            Call call(options);
            const DropoutArguments dropout_arguments = call.read_dropout(tokens, output);
            const nb::gil_scoped_release unlocked;
            dropout(dropout_arguments, threads);
        },
        "tokens"_a, "output"_a, nb::kw_only(), "probability"_a, "seed"_a, "threads"_a = 1, "Dropout of an array.");
}

void bind_cross_entropy(nb::module_& module) {
    module.def(
        "cross_entropy",
        [](nb::handle logits, nb::handle targets, nb::handle loss, nb::handle normalizer, double smoothing,
           int64_t ignored, int threads) {
            Options options;
            options.threads = threads;
            Call call(options);
            const CrossEntropyArguments arguments = call.read_cross_entropy(logits, targets, smoothing, ignored);
            const CrossEntropyResults results = {
                call.write_contiguous(loss, "loss", {arguments.rows}, call.accumulation_dtype()),
                call.write_contiguous(normalizer, "normalizer", {arguments.rows, 2}, call.accumulation_dtype())};
            const nb::gil_scoped_release unlocked;
            cross_entropy(arguments, results, threads);
        },
        "logits"_a, "targets"_a, "loss"_a, "normalizer"_a, nb::kw_only(), "smoothing"_a = 0.0,
        "ignored"_a = -1, "threads"_a = 1, "Cross-entropy of each row of logits.");
    module.def(
        "cross_entropy_backward",
        [](nb::handle grad_loss, nb::handle logits, nb::handle targets, nb::handle normalizer,
           nb::handle grad_logits, double smoothing, int64_t ignored, int threads) {
            Options options;
            options.threads = threads;
            Call call(options);
            const CrossEntropyArguments arguments = call.read_cross_entropy(logits, targets, smoothing, ignored);
            CrossEntropyGradients gradients;
            gradients.loss = call.read_contiguous(grad_loss, "grad_loss", {arguments.rows}, call.accumulation_dtype());
            gradients.normalizer =
                call.read_contiguous(normalizer, "normalizer", {arguments.rows, 2}, call.accumulation_dtype());
            gradients.logits =
                call.write_contiguous(grad_logits, "grad_logits", {arguments.rows, arguments.classes}, call.dtype());
            const nb::gil_scoped_release unlocked;
            cross_entropy_backward(arguments, gradients, threads);
        },
        "grad_loss"_a, "logits"_a, "targets"_a, "normalizer"_a, "grad_logits"_a, nb::kw_only(),
        "smoothing"_a = 0.0, "ignored"_a = -1, "threads"_a = 1, "Gradients of cross-entropy.");
}

void bind_scan(nb::module_& module) {
    module.def(
        "scan",
        [](nb::handle query, nb::handle key, nb::handle value, nb::handle log_decay, nb::handle beta, nb::handle state,
           nb::handle output, nb::handle final_state, double scale, int threads) {
            Options options;
            options.scale = scale;
            options.threads = threads;
            Call call(options);
            const ScanArguments given = call.read_scan(query, key, value, log_decay, beta, state);
            const ScanResults results = {
                call.write(output, "output", {given.batch, given.heads, given.length, given.value_dim}, call.dtype()),
                call.write(final_state, "final_state", {given.batch, given.heads, given.head_dim, given.value_dim},
                           call.accumulation_dtype())};
            const nb::gil_scoped_release unlocked;
            return !scan(given, results, threads);
        },
        "query"_a, "key"_a, "value"_a, "log_decay"_a.none(), "beta"_a.none(), "state"_a.none(), "output"_a,
        "final_state"_a, nb::kw_only(), "scale"_a = 1.0, "threads"_a = 1, "A state that decays and is updated by tokens.");
    module.def(
        "scan_backward",
        [](nb::handle grad_output, nb::handle grad_final_state, nb::handle query, nb::handle key, nb::handle value,
           nb::handle log_decay, nb::handle beta, nb::handle state, nb::handle grad_query, nb::handle grad_key,
           nb::handle grad_value, nb::handle grad_log_decay, nb::handle grad_beta, nb::handle grad_state, double scale,
           int threads) {
            Options options;
            options.scale = scale;
            options.threads = threads;
            Call call(options);
            const ScanArguments given = call.read_scan(query, key, value, log_decay, beta, state);
            const auto write = [&](nb::handle object, const char* name, const Array& of) -> Array {
                if (!of && object.is_none()) return {};
                if (!of) throw nb::value_error((std::string(name) + ": there is nothing it would be the gradient of").c_str());
                return call.write(object, name, {of.shape[0], of.shape[1], of.shape[2], of.shape[3]}, of.dtype);
            };
            ScanGradients gradients;
            gradients.output = call.read(grad_output, "grad_output",
                                         {given.batch, given.heads, given.length, given.value_dim}, call.dtype());
            gradients.final_state =
                call.read(grad_final_state, "grad_final_state",
                          {given.batch, given.heads, given.head_dim, given.value_dim}, call.accumulation_dtype(), accept);
            gradients.query = write(grad_query, "grad_query", given.query);
            gradients.key = write(grad_key, "grad_key", given.key);
            gradients.value = write(grad_value, "grad_value", given.value);
            gradients.log_decay = write(grad_log_decay, "grad_log_decay", given.log_decay);
            gradients.beta = write(grad_beta, "grad_beta", given.beta);
            gradients.state = write(grad_state, "grad_state", given.state);
            const nb::gil_scoped_release unlocked;
            scan_backward(given, gradients, threads);
        },
        "grad_output"_a, "grad_final_state"_a.none(), "query"_a, "key"_a, "value"_a, "log_decay"_a.none(),
        "beta"_a.none(), "state"_a.none(), "grad_query"_a, "grad_key"_a, "grad_value"_a, "grad_log_decay"_a.none(),
        "grad_beta"_a.none(), "grad_state"_a.none(), nb::kw_only(), "scale"_a = 1.0, "threads"_a = 1,
        "Gradients of a scan.");
}

void bind_buckets(nb::module_& module) {
    module.def(
        "bucket_cells",
        [](nb::handle query_token, nb::handle key_token, nb::handle query_buckets, nb::handle key_buckets,
           nb::handle row_start, nb::handle key_tile, nb::handle bitmaps, int64_t round, int64_t buckets,
           std::optional<int64_t> high, std::optional<int64_t> own, int64_t chunk, nb::handle last_chunk, int threads) {
            Options options;
            options.threads = threads;
            Call call(options);
            BucketArguments given = call.read_buckets(query_token, key_token, query_buckets, key_buckets, row_start,
                                                      key_tile, bitmaps, round, buckets, chunk, last_chunk);
            given.high = std::clamp(high.value_or(unbounded_high), unbounded_low, unbounded_high);
            given.except_self = own.has_value();
            given.offset = std::clamp(own.value_or(0), unbounded_low, unbounded_high);
            const nb::gil_scoped_release unlocked;
            bucket_cells(given, threads);
        },
        "query_token"_a, "key_token"_a, "query_buckets"_a, "key_buckets"_a, "row_start"_a, "key_tile"_a, "bitmaps"_a,
        nb::kw_only(), "earlier"_a = 0, "buckets"_a = 0, "high"_a = nb::none(), "own"_a = nb::none(), "chunk"_a = 0,
        "last_chunk"_a.none() = nb::none(), "threads"_a = 1,
        "Which queries may attend to which keys, over tokens that are sorted by bucket.");
}

// Options of an operation that has no mask.
Options threads_only(int threads) {
    Options options;
    options.threads = threads;
    return options;
}

void bind_projection(nb::module_& module) {
    module.def(
        "project",
        [](nb::handle tokens, nb::handle weight, nb::handle scale, nb::handle bias, nb::handle output, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const ProjectionArguments given = call.read_projection(tokens, weight, scale, bias, output);
            const nb::gil_scoped_release unlocked;
            project(given, threads);
        },
        "tokens"_a, "weight"_a, "scale"_a.none(), "bias"_a.none(), "output"_a, nb::kw_only(), "threads"_a = 1,
        "A linear layer of few tokens.");
}

void bind_sorted_tokens(nb::module_& module) {
    module.def(
        "hash_tokens",
        [](nb::handle tokens, nb::handle rotations, nb::handle factors, nb::handle buckets, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const HashArguments given = call.read_hash(tokens, rotations, factors, buckets);
            const nb::gil_scoped_release unlocked;
            hash_tokens(given, threads);
        },
        "tokens"_a, "rotations"_a, "factors"_a, "buckets"_a, nb::kw_only(), "threads"_a = 1,
        "The hash bucket of each token in each round.");
    module.def(
        "count_buckets",
        [](nb::handle codes, nb::handle sizes, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const BucketCounts given = call.read_bucket_sizes(codes, sizes);
            const nb::gil_scoped_release unlocked;
            count_buckets(given, threads);
        },
        "codes"_a, "sizes"_a, nb::kw_only(), "threads"_a = 1, "The number of tokens of each bucket.");
    module.def(
        "sort_by_bucket",
        [](nb::handle codes, nb::handle start, nb::handle token, nb::handle place, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const BucketPlaces given = call.read_bucket_places(codes, start, token, place);
            bool fits = false;
            {
                const nb::gil_scoped_release unlocked;
                fits = sort_by_bucket(given, threads);
            }
            if (!fits) throw nb::value_error("start: a place is not there");
        },
        "codes"_a, "start"_a, "token"_a, "place"_a, nb::kw_only(), "threads"_a = 1,
        "Tokens sorted by bucket, in their order inside each.");
    module.def(
        "list_bucket_tiles",
        [](nb::handle query_token, nb::handle key_token, nb::handle query_start, nb::handle key_start,
           nb::handle row_start, nb::handle key_tile, std::optional<int64_t> high) {
            const Options options;
            Call call(options);
            BucketTiles given =
                call.read_bucket_tiles(query_token, key_token, query_start, key_start, row_start, key_tile);
            given.high = std::clamp(high.value_or(unbounded_high), unbounded_low, unbounded_high);
            int64_t entries = 0;
            {
                const nb::gil_scoped_release unlocked;
                entries = list_bucket_tiles(given);
            }
            if (entries < 0) throw nb::value_error("key_tile: it has no room for all entries");
            return entries;
        },
        "query_token"_a, "key_token"_a, "query_start"_a, "key_start"_a, "row_start"_a, "key_tile"_a, nb::kw_only(),
        "high"_a = nb::none(), "The tiles of keys that share a bucket with each tile of queries.");
    module.def(
        "sort_rows",
        [](nb::handle rows, nb::handle token, nb::handle sorted, nb::handle divided, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const SortedRows given = call.read_sorted_rows(rows, token, sorted, divided);
            const nb::gil_scoped_release unlocked;
            sort_rows(given, threads);
        },
        "rows"_a, "token"_a, "sorted_rows"_a.none() = nb::none(), nb::kw_only(), "divided"_a.none() = nb::none(), "threads"_a = 1,
        "Copies rows of tokens to their places.");
    module.def(
        "sort_gradients",
        [](nb::handle grad_output, nb::handle output, nb::handle normalizer, nb::handle token, nb::handle sorted,
           nb::handle sorted_normalizer, nb::handle grad_lse, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const SortedGradients given = call.read_sorted_gradients(grad_output, output, normalizer, token, sorted,
                                                                     sorted_normalizer, grad_lse);
            const nb::gil_scoped_release unlocked;
            sort_gradients(given, threads);
        },
        "grad_output"_a, "output"_a, "normalizer"_a, "token"_a, "sorted_rows"_a, "sorted_normalizer"_a, "grad_lse"_a,
        nb::kw_only(), "threads"_a = 1, "Copies to places what the backward pass needs of the results.");
    module.def(
        "merge_rounds",
        [](nb::handle sorted, nb::handle sorted_normalizer, nb::handle place, nb::handle output, nb::handle normalizer,
           double factor, bool first, bool last, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            MergedRounds given = call.read_merged_rounds(sorted, sorted_normalizer, place, output, normalizer);
            given.factor = factor, given.first = first, given.last = last;
            const nb::gil_scoped_release unlocked;
            merge_rounds(given, threads);
        },
        "sorted_rows"_a, "sorted_normalizer"_a, "place"_a, "output"_a, "normalizer"_a, nb::kw_only(), "factor"_a = 1.0,
        "first"_a = true, "last"_a = true, "threads"_a = 1, "Merges results of rounds into one softmax.");
    module.def(
        "add_rows",
        [](nb::handle sorted, nb::handle place, nb::handle into, nb::handle divided, bool first, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            AddedRows given = call.read_added_rows(sorted, place, into, divided);
            given.first = first;
            const nb::gil_scoped_release unlocked;
            add_rows(given, threads);
        },
        "sorted_rows"_a, "place"_a, "into"_a, nb::kw_only(), "divided"_a.none() = nb::none(), "first"_a = true,
        "threads"_a = 1, "Adds rows at the places of each token.");
}

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

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (Isa isa : runnable_isas()) names.emplace_back(isa_name(isa));
    return names;
}

// Version of the interface that _native.pyi declares. Increase it here and in extension.py with each change that is
// incompatible with older Python files or an older module; extension.py refuses a module with another number.
constexpr int interface_number = 9;

NB_MODULE(_native, module) {
    module.attr("interface") = interface_number;
    bind_forward(module);
    bind_backward(module);
    bind_observe(module);
    bind_sigmoid(module);
    bind_additive(module);
    bind_paged(module);
    bind_dropout(module);
    bind_cross_entropy(module);
    bind_projection(module);
    bind_scan(module);
    bind_buckets(module);
    bind_sorted_tokens(module);
    bind_selection(module);
    module.def("isa", [] { return std::string(isa_name(chosen_isa())); }, "The instruction set in use.");
    module.def("isas", &isas, "The instruction sets that run here; each holds those after it.");
    module.def(
        "openmp",
        []() -> std::optional<std::string> {
            if (openmp::file().empty()) return std::nullopt;
            return openmp::file();
        },
        "The file of the OpenMP runtime whose threads are used, which is torch's; None if none was found: one thread.");
    module.def("poison", &Scratch::poison, "on"_a, "Whether scratch memory is filled with NaN before use, for tests.");
}

}  // namespace
}  // namespace regard

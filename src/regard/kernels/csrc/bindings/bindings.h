#pragma once

// What the files of bindings share, each of which defines the functions of a family of kernels in the Python module: how
// an operation is defined, its options, and the arrays that several operations read and write.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <string>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/array.h"

namespace regard {

namespace nb = nanobind;
using namespace nb::literals;

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

inline constexpr auto accept = Call::None::accept;

inline Array write_output(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.write(object, "output", {p.batch, p.heads, p.queries, p.value_dim}, call.dtype());
}

inline Array write_lse(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.write(object, "lse", {p.batch, p.heads, p.queries}, call.accumulation_dtype(), accept);
}

inline Array write_normalizer(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.write(object, "normalizer", {p.batch, p.heads, p.queries, 2}, call.accumulation_dtype(), accept);
}

inline Array read_normalizer(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.read(object, "normalizer", {p.batch, p.heads, p.queries, 2}, call.accumulation_dtype());
}

// The gradient of an argument that may be absent: of the argument's shape, in the dtype of sums.
inline Array write_gradient(Call& call, nb::handle object, const char* name, const Array& of) {
    if (object.is_none()) return {};
    if (!of) throw nb::value_error((std::string(name) + ": there is nothing it would be the gradient of").c_str());
    return call.write(object, name, {of.shape[0], of.shape[1], of.shape[2], of.shape[3]}, call.accumulation_dtype());
}

// Options of an operation that has no mask.
inline Options threads_only(int threads) {
    Options options;
    options.threads = threads;
    return options;
}

// Each in the file of its name, such as scan_bindings.cpp.
void bind_additive(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_buckets(nb::module_& module);
void bind_decoder_stack(nb::module_& module);
void bind_projection(nb::module_& module);
void bind_scan(nb::module_& module);
void bind_selection(nb::module_& module);
void bind_sublayers(nb::module_& module);
void bind_talking_heads(nb::module_& module);
void bind_training(nb::module_& module);

}  // namespace regard

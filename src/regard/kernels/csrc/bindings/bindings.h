#pragma once

// What the files of bindings share, each of which defines the functions of a family of kernels in the Python module: how
// an operation is defined.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <utility>

#include "bindings/arguments.h"

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
            const Options options{low,   high,  start, stop,         row_start, key_tile, bitmap, bitmaps, dense,
                                  scale, bias,  table, table_lowest, dropout,   seed};
            Call call(threads, options);
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

// An operation without a mask, as a function of the module: `read` reads its arguments, and `driver` computes while other
// threads of Python run. The number of threads is its last argument.
template <class Arguments, class... Given, class Result>
auto operation(Arguments (*read)(Call&, Given...), Result (*driver)(const Arguments&, int)) {
    return [read, driver](Given... given, int threads) {
        Call call(threads);
        const Arguments arguments = read(call, given...);
        const nb::gil_scoped_release unlocked;
        return driver(arguments, threads);
    };
}

// The same for a driver of arguments and results.
template <class Arguments, class Results, class... Given, class Result>
auto operation(std::pair<Arguments, Results> (*read)(Call&, Given...),
               Result (*driver)(const Arguments&, const Results&, int)) {
    return [read, driver](Given... given, int threads) {
        Call call(threads);
        const auto [arguments, results] = read(call, given...);
        const nb::gil_scoped_release unlocked;
        return driver(arguments, results, threads);
    };
}

// Each in the file of its name, such as scan_bindings.cpp.
void bind_additive(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_buckets(nb::module_& module);
void bind_convolution(nb::module_& module);
void bind_decoder_stack(nb::module_& module);
void bind_features(nb::module_& module);
void bind_projection(nb::module_& module);
void bind_scan(nb::module_& module);
void bind_selection(nb::module_& module);
void bind_sublayers(nb::module_& module);
void bind_talking_heads(nb::module_& module);
void bind_training(nb::module_& module);

}  // namespace regard

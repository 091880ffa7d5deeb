// Convolutions of tokens in the Python module.
#include <algorithm>

#include "bindings/bindings.h"
#include "convolution/convolution_kernels.h"

namespace regard {
namespace {

constexpr int64_t max_channels = 1024, max_filter = 4096;

// Checks the sizes of a convolution from `sources` of tokens to `heads`.
void check_sizes(const Array& from, int64_t heads, int64_t size) {
    const int64_t sources = from.shape[1];
    require(from.dtype == Dtype::float32 || from.dtype == Dtype::float64, "from: expected float32 or float64");
    require(from.shape[3] >= 1 && from.shape[3] <= max_channels, "from: the channels are out of range");
    require(size >= 1 && size <= max_filter, "filters: the size is out of range");
    require(sources >= 1 && heads >= 1 && std::max(sources, heads) % std::min(sources, heads) == 0,
            "from: the heads do not fit");
    require(from.shape[2] <= max_length, "from: too long");
}

ConvolutionArguments read_convolution(Call& call, nb::handle from, nb::handle filters, nb::handle base, nb::handle into,
                                      int64_t offset) {
    ConvolutionArguments given;
    given.from = call.take(from, "from");
    const Array& tokens = given.from;
    const Array of_into = call.take(into, "into");
    const int64_t heads = of_into.shape[1], rows = of_into.shape[2];
    given.into = call.write(into, "into", {tokens.shape[0], heads, rows, tokens.shape[3]}, tokens.dtype);
    given.base = call.read(base, "base", {tokens.shape[0], heads, rows, tokens.shape[3]}, tokens.dtype, accept);
    const int64_t size = call.take(filters, "filters").shape[3];
    given.filters =
        call.read_contiguous(filters, "filters", {std::max(heads, tokens.shape[1]), size}, tokens.dtype);
    check_sizes(tokens, heads, size);
    require(rows <= max_length, "into: too long");
    require(offset >= -max_length && offset <= max_length, "offset: out of range");
    given.offset = offset;
    return given;
}

FilterGradients read_filter_gradients(Call& call, nb::handle output, nb::handle from, nb::handle into, int64_t offset) {
    FilterGradients given;
    given.from = call.take(from, "from");
    const Array& tokens = given.from;
    given.output = call.take(output, "output");
    const int64_t heads = given.output.shape[1], rows = given.output.shape[2], size = call.take(into, "into").shape[3];
    given.output = call.read(output, "output", {tokens.shape[0], heads, rows, tokens.shape[3]}, tokens.dtype);
    given.into = call.write_contiguous(into, "into", {heads, size}, tokens.dtype);
    check_sizes(tokens, heads, size);
    require(heads % tokens.shape[1] == 0, "from: the heads do not divide those of output");
    require(rows <= max_length, "output: too long");
    require(offset >= -max_length && offset <= max_length, "offset: out of range");
    given.offset = offset;
    return given;
}

}  // namespace

void bind_convolution(nb::module_& module) {
    module.def("convolve_tokens", operation(read_convolution, convolve_tokens), "from_"_a, "filters"_a, "base"_a.none(),
               "into"_a, "offset"_a, "threads"_a = 1, "A convolution of tokens along their length.");
    module.def("differentiate_filters", operation(read_filter_gradients, differentiate_filters), "output"_a, "from_"_a,
               "into"_a, "offset"_a, "threads"_a = 1, "The gradients of its filters.");
}

}  // namespace regard

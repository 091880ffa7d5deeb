// The arguments of all layers of a decoder for few tokens. Linear layers, norms and rotations as in
// sublayer_arguments.cpp; what may be absent may be None:
//
//     layer           (attention, feed_forward)
//     attention       (heads, key_heads, head_dim, value_dim, scale, softcap, sinks, (query_layer, output_layer, key_layer,
//                     value_layer, query_norm, key_norm), norms)             softcap, sinks and the norms may be absent
//     feed_forward    ((up, gate, down, activation), norms)                  gate may be absent
//     norms           (before, of_output, after)                             each may be absent
//     step of a layer (key, value, begin, end, low, high, start, stop, rotation): the storage of keys (batch, key_heads,
//                     rows, head_dim) and of values, of which begin .. end - 1 are the keys of the step, those of the new
//                     tokens the last; the mask, and the rotation, may be absent
//     the same, with pages    (key_pages, value_pages, page_table, lengths, low, high, rotation): pages (pages, key_heads,
//                     page_size, size), of which the last token of each sequence is new, and is written
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bindings/argument_checks.h"
#include "bindings/arguments.h"

namespace nb = nanobind;

namespace regard {

DecoderLayer Call::read_decoder_layer(nb::handle layer, int64_t width, Dtype dtype) {
    const nb::tuple sublayers = take_tuple(layer, "layer", 2);
    const nb::tuple attention = take_tuple(sublayers[0], "attention", 9);
    const nb::tuple feed_forward = take_tuple(sublayers[1], "feed_forward", 2);
    const nb::tuple of_attention = take_tuple(attention[7], "layers", 6);
    const nb::tuple of_feed_forward = take_tuple(feed_forward[0], "layers", 4);
    const nb::tuple around_attention = take_tuple(attention[8], "norms", 3);
    const nb::tuple around_feed_forward = take_tuple(feed_forward[1], "norms", 3);

    DecoderLayer given;
    given.attention.width = given.feed_forward.width = width;
    given.attention.tokens.dtype = given.feed_forward.tokens.dtype = dtype;
    problem = {};
    problem.batch = problem.queries = problem.keys = 1;
    problem.heads = nb::cast<int64_t>(attention[0]);
    problem.key_heads = nb::cast<int64_t>(attention[1]);
    problem.head_dim = nb::cast<int64_t>(attention[2]);
    problem.value_dim = nb::cast<int64_t>(attention[3]);
    problem.scale = nb::cast<double>(attention[4]);
    check_sizes(max_head_dim);
    read_cap_and_sinks(attention[5], attention[6]);
    read_attention_layers(given.attention, {of_attention[0], of_attention[2], of_attention[3], of_attention[1], {}, {},
                                            {}, of_attention[4], of_attention[5], {}});
    require(static_cast<bool>(given.attention.key_layer.weight), "key_layer: expected a linear layer, got None");
    read_norms(given.attention, around_attention[0], around_attention[1], around_attention[2]);
    read_feed_forward_layers(given.feed_forward, of_feed_forward[0], of_feed_forward[1], of_feed_forward[2],
                             nb::cast<std::string>(of_feed_forward[3]));
    read_norms(given.feed_forward, around_feed_forward[0], around_feed_forward[1], around_feed_forward[2]);
    given.problem = problem;
    return given;
}

Array Call::read_stored(nb::handle object, const char* name, int64_t size, int64_t begin, int64_t end, Dtype dtype) {
    const int64_t rows = take(object, name).shape[2];
    Array array = write(object, name, {problem.batch, problem.key_heads, rows, size}, dtype);
    require(array.stride[3] == 1 || size <= 1, "key and value: expected contiguous heads");
    require(end <= rows, "end: it lies beyond the storage of keys and values");
    array.data = static_cast<char*>(array.data) + begin * array.stride[2] * static_cast<int64_t>(dtype_size(dtype));
    array.shape[2] = end - begin;
    return array;
}

DecoderLayer Call::with_step(const DecoderLayer& layer, nb::handle step, int64_t batch, int64_t length) {
    const nb::tuple parts = take_tuple(step, "step", 9);
    const int64_t begin = nb::cast<int64_t>(parts[2]), end = nb::cast<int64_t>(parts[3]);
    require(0 <= begin && begin <= end && length <= end - begin, "begin and end: expected the new tokens between them");
    DecoderLayer whole = layer;
    const Dtype dtype = layer.attention.tokens.dtype;
    whole.attention.rows = whole.feed_forward.rows = batch * length;
    problem = layer.problem;
    problem.batch = batch, problem.queries = length, problem.keys = end - begin;
    problem.key = read_stored(parts[0], "key", problem.head_dim, begin, end, dtype);
    problem.value = read_stored(parts[1], "value", problem.value_dim, begin, end, dtype);
    check_sizes(max_head_dim);
    read_band(nb::cast<std::optional<int64_t>>(parts[4]), nb::cast<std::optional<int64_t>>(parts[5]));
    problem.mask.start = copy_bounds(parts[6], "start");
    problem.mask.stop = copy_bounds(parts[7], "stop");
    whole.attention.rotation = read_rotation(parts[8], dtype, length);
    whole.problem = problem;
    return whole;
}

Array Call::read_pages(nb::handle object, const char* name, int64_t page_size, int64_t size, Dtype dtype) {
    const int64_t count = take(object, name).shape[0];
    const Array array = write(object, name, {count, problem.key_heads, page_size, size}, dtype);
    require(array.stride[3] == 1 || size <= 1, "key_pages and value_pages: expected contiguous heads");
    return array;
}

DecoderLayer Call::with_pages(const DecoderLayer& layer, nb::handle step, int64_t batch) {
    const nb::tuple parts = take_tuple(step, "step", 7);
    DecoderLayer whole = layer;
    const Dtype dtype = layer.attention.tokens.dtype;
    whole.attention.rows = whole.feed_forward.rows = batch;
    problem = layer.problem;
    problem.batch = batch, problem.queries = 1;
    Pages& pages = whole.attention.pages;
    const int64_t page_size = take(parts[0], "key_pages").shape[2];
    pages.key = read_pages(parts[0], "key_pages", page_size, problem.head_dim, dtype);
    pages.value = read_pages(parts[1], "value_pages", page_size, problem.value_dim, dtype);
    require(pages.key.shape[0] == pages.value.shape[0], "value_pages: expected as many as key_pages");
    read_page_table(pages, parts[2], parts[3]);
    const auto* lengths = static_cast<const int64_t*>(pages.lengths.data);
    for (int64_t entry = 0; entry < batch; ++entry)
        require(lengths[entry] >= 1, "lengths: expected room for the new token of each sequence");
    read_band(nb::cast<std::optional<int64_t>>(parts[4]), nb::cast<std::optional<int64_t>>(parts[5]));
    whole.attention.rotation = read_rotation(parts[6], dtype, batch);
    whole.problem = problem;
    return whole;
}

}  // namespace regard

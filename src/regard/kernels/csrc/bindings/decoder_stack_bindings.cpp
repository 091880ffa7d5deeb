// All layers of a decoder for few tokens in the Python module. Linear layers, norms and rotations are as in
// layer_arguments.h; what may be absent may be None:
//
//     layer           (attention, feed_forward)
//     attention       (heads, key_heads, head_dim, value_dim, scale, softcap, sinks, (query_layer, output_layer, key_layer,
//                     value_layer, query_norm, key_norm), norms)             softcap, sinks and the norms may be absent
//     feed_forward    ((up, gate, down, activation), norms)                  gate may be absent
//     norms           (before, of_output, after)                             each may be absent
//     step of a layer (key, value, begin, end, low, high, start, stop, rotation): the storage of keys (batch, key_heads,
//                     rows, head_dim) and of values, perhaps rounded to int8 (decode/stored_rows.h), of which begin .. end - 1
//                     are the keys of the step, those of the new tokens the last; the mask, and the rotation, may be absent
//     the same, with pages    (key_pages, value_pages, page_table, lengths, counts, low, high, rotation): pages (pages,
//                     key_heads, page_size, size), of which the last counts[i] tokens of sequence i are new, and are written
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/attention_arguments.h"
#include "bindings/bindings.h"
#include "bindings/layer_arguments.h"
#include "bindings/snapshot.h"
#include "decode/decode_kernels.h"
#include "decode/decoder_stack.h"
#include "decode/stored_rows.h"

namespace regard {
namespace {

DecoderLayer read_decoder_layer(Call& call, nb::handle layer, int64_t width, Dtype dtype) {
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
    Problem& p = call.problem;
    p = {};
    p.batch = p.queries = p.keys = 1;
    p.heads = nb::cast<int64_t>(attention[0]);
    p.key_heads = nb::cast<int64_t>(attention[1]);
    p.head_dim = nb::cast<int64_t>(attention[2]);
    p.value_dim = nb::cast<int64_t>(attention[3]);
    p.scale = nb::cast<double>(attention[4]);
    check_sizes(p);
    read_cap_and_sinks(call, attention[5], attention[6]);
    read_attention_layers(call, given.attention, {of_attention[0], of_attention[1], of_attention[2], of_attention[3],
                                                  of_attention[4], of_attention[5]});
    require(static_cast<bool>(given.attention.key_layer.weight), "key_layer: expected a linear layer, got None");
    read_norms(call, given.attention, around_attention[0], around_attention[1], around_attention[2]);
    read_feed_forward_layers(call, given.feed_forward, of_feed_forward[0], of_feed_forward[1], of_feed_forward[2],
                             nb::cast<std::string>(of_feed_forward[3]));
    read_norms(call, given.feed_forward, around_feed_forward[0], around_feed_forward[1], around_feed_forward[2]);
    given.problem = p;
    return given;
}

// Reads rows of the storage of keys or values, to be written, for tokens of `dtype`.
Array read_stored(Call& call, nb::handle object, const char* name, int64_t size, int64_t begin, int64_t end,
                  Dtype dtype) {
    const Array given = call.take(object, name);
    const int64_t rows = given.shape[2];
    if (given.dtype == Dtype::int8) dtype = Dtype::int8;
    size = stored_width(dtype, size);
    Array array = call.write(object, name, {call.problem.batch, call.problem.key_heads, rows, size}, dtype);
    require(array.stride[3] == 1 || size <= 1, "key and value: expected contiguous heads");
    require(end <= rows, "end: it lies beyond the storage of keys and values");
    array.data = static_cast<char*>(array.data) + begin * array.stride[2] * static_cast<int64_t>(dtype_size(dtype));
    array.shape[2] = end - begin;
    return array;
}

DecoderLayer with_step(Call& call, const DecoderLayer& layer, nb::handle step, int64_t batch, int64_t length) {
    const nb::tuple parts = take_tuple(step, "step", 9);
    const int64_t begin = nb::cast<int64_t>(parts[2]), end = nb::cast<int64_t>(parts[3]);
    require(0 <= begin && begin <= end && length <= end - begin, "begin and end: expected the new tokens between them");
    DecoderLayer whole = layer;
    const Dtype dtype = layer.attention.tokens.dtype;
    whole.attention.rows = whole.feed_forward.rows = batch * length;
    Problem& p = call.problem;
    p = layer.problem;
    p.batch = batch, p.queries = length, p.keys = end - begin;
    p.key = read_stored(call, parts[0], "key", p.head_dim, begin, end, dtype);
    p.value = read_stored(call, parts[1], "value", p.value_dim, begin, end, dtype);
    check_stored(p.key, "key", p.value, "value", dtype);
    require(p.key.dtype != Dtype::int8 || p.group() * p.queries <= max_decode_rows,
            "tokens: expected at most 64 queries to one key head of rounded keys");
    check_sizes(p);
    read_band(p, nb::cast<std::optional<int64_t>>(parts[4]), nb::cast<std::optional<int64_t>>(parts[5]));
    p.mask.start = copy_bounds(call, parts[6], "start");
    p.mask.stop = copy_bounds(call, parts[7], "stop");
    whole.attention.rotation = read_rotation(call, parts[8], dtype, length);
    whole.problem = p;
    return whole;
}

Array read_pages(Call& call, nb::handle object, const char* name, int64_t page_size, int64_t size, Dtype dtype) {
    const Array given = call.take(object, name);
    if (given.dtype == Dtype::int8) dtype = Dtype::int8;
    size = stored_width(dtype, size);
    const Array array = call.write(object, name, {given.shape[0], call.problem.key_heads, page_size, size}, dtype);
    require(array.stride[3] == 1 || size <= 1, "key_pages and value_pages: expected contiguous heads");
    return array;
}

DecoderLayer with_pages(Call& call, const DecoderLayer& layer, nb::handle step, int64_t tokens) {
    const nb::tuple parts = take_tuple(step, "step", 8);
    DecoderLayer whole = layer;
    const Dtype dtype = layer.attention.tokens.dtype;
    whole.attention.rows = whole.feed_forward.rows = tokens;
    Problem& p = call.problem;
    p = layer.problem;
    p.batch = 1, p.queries = tokens;
    Pages& pages = whole.attention.pages;
    const int64_t page_size = call.take(parts[0], "key_pages").shape[2];
    pages.key = read_pages(call, parts[0], "key_pages", page_size, p.head_dim, dtype);
    pages.value = read_pages(call, parts[1], "value_pages", page_size, p.value_dim, dtype);
    check_stored(pages.key, "key_pages", pages.value, "value_pages", dtype);
    require(pages.key.shape[0] == pages.value.shape[0], "value_pages: expected as many as key_pages");
    read_page_table(call, pages, parts[2], parts[3], parts[4]);
    require(static_cast<bool>(pages.counts), "counts: expected the number of new tokens of each sequence, got None");
    for (int64_t sequence = 0; sequence < pages.sequences(); ++sequence)
        require(pages.length(sequence) >= pages.count(p, sequence),
                "lengths: expected room for the new tokens of each sequence");
    read_band(p, nb::cast<std::optional<int64_t>>(parts[5]), nb::cast<std::optional<int64_t>>(parts[6]));
    whole.attention.rotation = read_rotation(call, parts[7], dtype, tokens);
    whole.problem = p;
    return whole;
}

// The layers of a decoder, read once. Its owner asks before each step whether what they were read from is unchanged.
class DecoderStack {
public:
    // Absent if an array has to be copied to be read, since a copy would not follow its changes.
    static std::optional<DecoderStack> read(nb::sequence layers, nb::handle norm, nb::handle output, nb::sequence dicts,
                                            nb::sequence arrays, nb::handle tokens) {
        DecoderStack stack;
        for (nb::handle dict : dicts) stack.read_from_.add_dict(dict);
        for (nb::handle array : arrays)
            if (!stack.read_from_.add_array(array)) return std::nullopt;
        Call call(1);
        const Array like = call.take(tokens, "tokens");
        stack.dtype_ = like.dtype, stack.width_ = like.shape[3];
        require(like.dtype == Dtype::float32 || like.dtype == Dtype::bfloat16, "tokens: expected float32 or bfloat16");
        for (nb::handle layer : layers)
            stack.layers_.push_back(read_decoder_layer(call, layer, stack.width_, stack.dtype_));
        stack.norm_ = read_norm(call, norm, "norm", stack.width_, stack.dtype_);
        stack.output_ = read_layer(call, output, "output", stack.width_, -1, stack.dtype_);
        stack.source_ = nb::make_tuple(nb::tuple(layers), norm, output);
        return stack;
    }

    bool is_unchanged() const { return read_from_.holds(); }

    void step(nb::handle tokens, nb::handle outputs, nb::handle logits, nb::sequence steps, int threads) const {
        run(tokens, outputs, logits, steps, threads,
            [](Call& call, const DecoderLayer& layer, nb::handle step, const Array& given) {
                return with_step(call, layer, step, given.shape[1], given.shape[2]);
            });
    }

    void step_in_pages(nb::handle tokens, nb::handle outputs, nb::handle logits, nb::sequence steps, int threads) const {
        run(tokens, outputs, logits, steps, threads,
            [](Call& call, const DecoderLayer& layer, nb::handle step, const Array& given) {
                require(given.shape[2] == 1, "tokens: expected (tokens, 1, width)");
                return with_pages(call, layer, step, given.shape[1]);
            });
    }

private:
    // complete(call, layer, step of the layer, tokens) returns a layer with its step.
    template <class Complete>
    void run(nb::handle tokens, nb::handle outputs, nb::handle logits, nb::sequence steps, int threads,
             Complete complete) const {
        Call call(threads);
        const Array given = call.take(tokens, "tokens");
        const int64_t batch = given.shape[1], length = given.shape[2];
        require(given.shape[0] == 1, "tokens: expected (batch, length, width)");
        check_countable({batch, length, width_, static_cast<int64_t>(sizeof(float))});
        const auto count = static_cast<int64_t>(layers_.size());
        require(static_cast<int64_t>(nb::len(steps)) == count, "steps: expected one for each layer");
        const Array first = call.read_contiguous(tokens, "tokens", {batch, length, width_}, dtype_);
        const Array results = call.write_contiguous(outputs, "outputs", {count, batch, length, width_}, dtype_);
        const int64_t bytes = batch * length * width_ * static_cast<int64_t>(dtype_size(dtype_));
        std::vector<DecoderLayer> layers;
        layers.reserve(layers_.size());
        for (int64_t index = 0; index < count; ++index) {
            const auto at = static_cast<size_t>(index);
            layers.push_back(complete(call, layers_[at], nb::object(steps[index]), given));
            Array& output = layers.back().feed_forward.output;
            output = first;
            output.data = static_cast<char*>(results.data) + index * bytes;
        }
        if (!layers.empty()) layers.front().attention.tokens = first;
        ProjectionArguments output;
        if (!logits.is_none()) {
            require(static_cast<bool>(output_.weight), "logits: expected None without an output layer");
            output = output_;
            output.output = call.write_contiguous(logits, "logits", {batch, length, output.outputs}, dtype_);
        }
        const nb::gil_scoped_release unlocked;
        decoder_stack(layers, norm_, output, threads);
    }

    nb::object source_;  // holds the arrays of the layers
    Snapshot read_from_;
    Dtype dtype_ = Dtype::absent;
    int64_t width_ = 0;
    std::vector<DecoderLayer> layers_;
    NormLayer norm_;
    ProjectionArguments output_;  // its weight may be absent
};

}  // namespace

void bind_decoder_stack(nb::module_& module) {
    nb::class_<DecoderStack>(module, "DecoderStack", "The layers of a decoder for few tokens, read once for all steps.")
        .def_static("read", &DecoderStack::read, "layers"_a, "norm"_a.none(), "output"_a.none(), "dicts"_a, "arrays"_a,
                    "tokens"_a, "Reads layers for tokens of this width and dtype; None if an array has to be copied.")
        .def("is_unchanged", &DecoderStack::is_unchanged,
             "Whether the dicts and arrays from which the layers were read are as they were.")
        .def("step", &DecoderStack::step, "tokens"_a, "outputs"_a, "logits"_a.none(), "steps"_a, nb::kw_only(),
             "threads"_a = 1, "The output of each layer for the tokens of a step, and of the output layer behind the norm.")
        .def("step_in_pages", &DecoderStack::step_in_pages, "tokens"_a, "outputs"_a, "logits"_a.none(), "steps"_a,
             nb::kw_only(), "threads"_a = 1, "The same for new tokens of sequences whose keys and values are in pages.");
}

}  // namespace regard

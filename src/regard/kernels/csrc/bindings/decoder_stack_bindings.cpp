// All layers of a decoder for few tokens in the Python module.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings/argument_checks.h"
#include "bindings/bindings.h"
#include "bindings/snapshot.h"
#include "decode/decoder_stack.h"

namespace regard {
namespace {

// The layers of a decoder, read once. Its owner asks before each step whether what they were read from is unchanged.
class DecoderStack {
public:
    // Absent if an array has to be copied to be read, since a copy would not follow its changes.
    static std::optional<DecoderStack> read(nb::sequence layers, nb::handle norm, nb::sequence dicts,
                                            nb::sequence arrays, nb::handle tokens) {
        DecoderStack stack;
        for (nb::handle dict : dicts) stack.read_from_.add_dict(dict);
        for (nb::handle array : arrays)
            if (!stack.read_from_.add_array(array)) return std::nullopt;
        const Options options = threads_only(1);
        Call call(options);
        const Array like = call.take(tokens, "tokens");
        stack.dtype_ = like.dtype, stack.width_ = like.shape[3];
        require(like.dtype == Dtype::float32 || like.dtype == Dtype::bfloat16, "tokens: expected float32 or bfloat16");
        for (nb::handle layer : layers)
            stack.layers_.push_back(call.read_decoder_layer(layer, stack.width_, stack.dtype_));
        stack.norm_ = call.read_norm(norm, "norm", stack.width_, stack.dtype_);
        stack.source_ = nb::make_tuple(nb::tuple(layers), norm);
        return stack;
    }

    bool is_unchanged() const { return read_from_.holds(); }

    void step(nb::handle tokens, nb::handle outputs, nb::sequence steps, int threads) const {
        run(tokens, outputs, steps, threads, [](Call& call, const DecoderLayer& layer, nb::handle step, const Array& given) {
            return call.with_step(layer, step, given.shape[1], given.shape[2]);
        });
    }

    void step_in_pages(nb::handle tokens, nb::handle outputs, nb::sequence steps, int threads) const {
        run(tokens, outputs, steps, threads, [](Call& call, const DecoderLayer& layer, nb::handle step, const Array& given) {
            require(given.shape[2] == 1, "tokens: expected one of each sequence");
            return call.with_pages(layer, step, given.shape[1]);
        });
    }

private:
    // complete(call, layer, step of the layer, tokens) returns a layer with its step.
    template <class Complete>
    void run(nb::handle tokens, nb::handle outputs, nb::sequence steps, int threads, Complete complete) const {
        const Options options = threads_only(threads);
        Call call(options);
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
        const nb::gil_scoped_release unlocked;
        decoder_stack(layers, norm_, threads);
    }

    nb::object source_;  // holds the arrays of the layers
    Snapshot read_from_;
    Dtype dtype_ = Dtype::absent;
    int64_t width_ = 0;
    std::vector<DecoderLayer> layers_;
    NormLayer norm_;
};

}  // namespace

void bind_decoder_stack(nb::module_& module) {
    nb::class_<DecoderStack>(module, "DecoderStack", "The layers of a decoder for few tokens, read once for all steps.")
        .def_static("read", &DecoderStack::read, "layers"_a, "norm"_a.none(), "dicts"_a, "arrays"_a, "tokens"_a,
                    "Reads layers for tokens of this width and dtype; None if an array has to be copied.")
        .def("is_unchanged", &DecoderStack::is_unchanged,
             "Whether the dicts and arrays from which the layers were read are as they were.")
        .def("step", &DecoderStack::step, "tokens"_a, "outputs"_a, "steps"_a, nb::kw_only(), "threads"_a = 1,
             "The output of each layer for the tokens of a step.")
        .def("step_in_pages", &DecoderStack::step_in_pages, "tokens"_a, "outputs"_a, "steps"_a, nb::kw_only(),
             "threads"_a = 1, "The same for one token of each sequence, whose keys and values are in pages.");
}

}  // namespace regard

// Dropout, activations, cross-entropy and likeliest classes in the Python module.
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"
#include "bindings/layer_arguments.h"
#include "drivers.h"
#include "linear/linear_kernels.h"

namespace regard {
namespace {

DropoutArguments read_dropout(Call& call, nb::handle tokens, nb::handle output, double probability, int64_t seed) {
    DropoutArguments arguments;
    call.set_dropout(probability, seed);
    const Array array = call.take(tokens, "tokens");
    check_floating(array, "tokens");
    arguments.count = array.shape[3];
    arguments.tokens = call.read_contiguous(tokens, "tokens", {arguments.count}, array.dtype);
    arguments.output = call.write_contiguous(output, "output", {arguments.count}, array.dtype);
    arguments.probability = call.problem.dropout;
    arguments.seed = call.problem.seed;
    return arguments;
}

// An activation, or its gradient, which may be None.
ActivationArguments read_activation(Call& call, nb::handle tokens, nb::handle gradient, nb::handle output,
                                    const std::string& activation) {
    ActivationArguments arguments;
    const Array array = call.take(tokens, "tokens");
    require(array.dtype == Dtype::float32 || array.dtype == Dtype::bfloat16, "tokens: expected float32 or bfloat16");
    arguments.count = array.shape[3];
    const Activation given = arguments.activation = to_activation(activation);
    arguments.tokens = call.read_contiguous(tokens, "tokens", {arguments.count}, array.dtype);
    arguments.gradient = call.read_contiguous(gradient, "gradient", {arguments.count}, array.dtype, accept);
    require(!arguments.gradient || given == Activation::gelu || given == Activation::gelu_tanh ||
                given == Activation::quick_gelu || given == Activation::silu,
            "activation: expected gelu, gelu_tanh, quick_gelu or silu for a gradient");
    arguments.output = call.write_contiguous(output, "output", {arguments.count}, array.dtype);
    return arguments;
}

// Contiguous logits (rows, classes) of one class or more.
Array read_logits(Call& call, nb::handle logits) {
    const Array scored = call.take(logits, "logits");
    check_floating(scored, "logits");
    require(scored.shape[3] >= 1, "logits: expected at least one class");
    return call.problem.query =
               call.read_contiguous(logits, "logits", {scored.shape[2], scored.shape[3]}, scored.dtype);
}

CrossEntropyArguments read_targets(Call& call, nb::handle logits, nb::handle targets, double smoothing, int64_t ignored) {
    require(smoothing >= 0 && smoothing <= 1, "smoothing: expected 0 <= smoothing <= 1");
    CrossEntropyArguments arguments;
    arguments.logits = read_logits(call, logits);
    arguments.rows = arguments.logits.shape[2];
    arguments.classes = arguments.logits.shape[3];
    arguments.targets = call.read_copy(targets, "targets", {arguments.rows}, Dtype::int64);
    for (int64_t row = 0; row < arguments.rows; ++row) {
        const int64_t target = static_cast<const int64_t*>(arguments.targets.data)[row];
        require((target >= 0 && target < arguments.classes) || target == ignored, "targets: one is out of range");
    }
    arguments.smoothing = smoothing;
    arguments.ignored = ignored;
    return arguments;
}

std::pair<CrossEntropyArguments, CrossEntropyResults> read_cross_entropy(Call& call, nb::handle logits,
                                                                         nb::handle targets, nb::handle loss,
                                                                         nb::handle normalizer, double smoothing,
                                                                         int64_t ignored) {
    const CrossEntropyArguments arguments = read_targets(call, logits, targets, smoothing, ignored);
    const Dtype sums = call.accumulation_dtype();
    const Array of_loss = call.write_contiguous(loss, "loss", {arguments.rows}, sums);
    return {arguments, {of_loss, call.write_contiguous(normalizer, "normalizer", {arguments.rows, 2}, sums)}};
}

std::pair<CrossEntropyArguments, CrossEntropyGradients> read_cross_entropy_backward(
    Call& call, nb::handle grad_loss, nb::handle logits, nb::handle targets, nb::handle normalizer,
    nb::handle grad_logits, double smoothing, int64_t ignored) {
    const CrossEntropyArguments arguments = read_targets(call, logits, targets, smoothing, ignored);
    const Dtype sums = call.accumulation_dtype();
    CrossEntropyGradients gradients;
    gradients.loss = call.read_contiguous(grad_loss, "grad_loss", {arguments.rows}, sums);
    gradients.normalizer = call.read_contiguous(normalizer, "normalizer", {arguments.rows, 2}, sums);
    gradients.logits =
        call.write_contiguous(grad_logits, "grad_logits", {arguments.rows, arguments.classes}, call.dtype());
    return {arguments, gradients};
}

std::pair<LikeliestArguments, LikeliestResults> read_likeliest(Call& call, nb::handle logits, nb::handle banned,
                                                               nb::handle classes, nb::handle log_probability) {
    LikeliestArguments arguments;
    arguments.logits = read_logits(call, logits);
    arguments.rows = arguments.logits.shape[2];
    arguments.classes = arguments.logits.shape[3];
    arguments.banned = call.read_indices(banned, "banned", arguments.classes);
    arguments.num_banned = arguments.banned.shape[3];
    const Array of_classes = call.write_contiguous(classes, "classes", {arguments.rows}, Dtype::int64);
    return {arguments, {of_classes, call.write_contiguous(log_probability, "log_probability", {arguments.rows},
                                                          call.accumulation_dtype())}};
}

}  // namespace

void bind_training(nb::module_& module) {
    module.def("dropout", operation(read_dropout, dropout), "tokens"_a, "output"_a, nb::kw_only(), "probability"_a,
               "seed"_a, "threads"_a = 1, "Dropout of an array.");
    module.def("activation", operation(read_activation, activate), "tokens"_a, "gradient"_a.none(), "output"_a,
               nb::kw_only(), "activation"_a, "threads"_a = 1,
               "An activation of an array, or a gradient times its derivative.");
    module.def("cross_entropy", operation(read_cross_entropy, cross_entropy), "logits"_a, "targets"_a, "loss"_a,
               "normalizer"_a, nb::kw_only(), "smoothing"_a = 0.0, "ignored"_a = -1, "threads"_a = 1,
               "Cross-entropy of each row of logits.");
    module.def("cross_entropy_backward", operation(read_cross_entropy_backward, cross_entropy_backward), "grad_loss"_a,
               "logits"_a, "targets"_a, "normalizer"_a, "grad_logits"_a, nb::kw_only(), "smoothing"_a = 0.0,
               "ignored"_a = -1, "threads"_a = 1, "Gradients of cross-entropy.");
    module.def("likeliest_class", operation(read_likeliest, likeliest_class), "logits"_a, "banned"_a, "classes"_a,
               "log_probability"_a, nb::kw_only(), "threads"_a = 1,
               "The most probable class of each row of logits, and its log-probability.");
}

}  // namespace regard

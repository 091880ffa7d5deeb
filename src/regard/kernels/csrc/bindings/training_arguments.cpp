// The arguments of dropout, activations, cross-entropy and likeliest classes.
#include "bindings/arguments.h"

#include "bindings/argument_checks.h"

namespace nb = nanobind;

namespace regard {

DropoutArguments Call::read_dropout(nb::handle tokens, nb::handle output) {
    DropoutArguments dropout_arguments;
    const Array array = take(tokens, "tokens");
    check_floating(array, "tokens");
    dropout_arguments.count = array.shape[3];
    dropout_arguments.tokens = read_contiguous(tokens, "tokens", {dropout_arguments.count}, array.dtype);
    dropout_arguments.output = write_contiguous(output, "output", {dropout_arguments.count}, array.dtype);
    dropout_arguments.probability = options_.dropout;
    dropout_arguments.seed = static_cast<uint64_t>(options_.seed);
    return dropout_arguments;
}

ActivationArguments Call::read_activation(nb::handle tokens, nb::handle gradient, nb::handle output,
                                          const std::string& activation) {
    ActivationArguments arguments;
    const Array array = take(tokens, "tokens");
    require(array.dtype == Dtype::float32 || array.dtype == Dtype::bfloat16, "tokens: expected float32 or bfloat16");
    arguments.count = array.shape[3];
    arguments.activation = to_activation(activation);
    arguments.tokens = read_contiguous(tokens, "tokens", {arguments.count}, array.dtype);
    if (!gradient.is_none()) {
        arguments.gradient = read_contiguous(gradient, "gradient", {arguments.count}, array.dtype);
        const Activation given = arguments.activation;
        require(given == Activation::gelu || given == Activation::gelu_tanh || given == Activation::silu,
                "activation: expected gelu, gelu_tanh or silu for a gradient");
    }
    arguments.output = write_contiguous(output, "output", {arguments.count}, array.dtype);
    return arguments;
}

CrossEntropyArguments Call::read_cross_entropy(nb::handle logits, nb::handle targets, double smoothing, int64_t ignored) {
    require(smoothing >= 0 && smoothing <= 1, "smoothing: expected 0 <= smoothing <= 1");
    CrossEntropyArguments arguments;
    arguments.logits = read_logits(logits);
    arguments.rows = arguments.logits.shape[2];
    arguments.classes = arguments.logits.shape[3];
    arguments.targets = read_copy(targets, "targets", {arguments.rows}, Dtype::int64);
    for (int64_t row = 0; row < arguments.rows; ++row) {
        const int64_t target = static_cast<const int64_t*>(arguments.targets.data)[row];
        require((target >= 0 && target < arguments.classes) || target == ignored, "targets: one is out of range");
    }
    arguments.smoothing = smoothing;
    arguments.ignored = ignored;
    return arguments;
}

LikeliestArguments Call::read_likeliest(nb::handle logits, nb::handle banned) {
    LikeliestArguments arguments;
    arguments.logits = read_logits(logits);
    arguments.rows = arguments.logits.shape[2];
    arguments.classes = arguments.logits.shape[3];
    arguments.banned = read_indices(banned, "banned", arguments.classes);
    arguments.num_banned = arguments.banned.shape[3];
    return arguments;
}

Array Call::read_logits(nb::handle logits) {
    const Array scored = take(logits, "logits");
    check_floating(scored, "logits");
    require(scored.shape[3] >= 1, "logits: expected at least one class");
    problem.query = read_contiguous(logits, "logits", {scored.shape[2], scored.shape[3]}, scored.dtype);
    return problem.query;
}

}  // namespace regard

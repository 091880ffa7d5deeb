// Dropout, activations and cross-entropy in the Python module.
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"
#include "drivers.h"

namespace regard {
namespace {

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

void bind_activation(nb::module_& module) {
    module.def(
        "activation",
        [](nb::handle tokens, nb::handle gradient, nb::handle output, const std::string& activation, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const ActivationArguments arguments = call.read_activation(tokens, gradient, output, activation);
            const nb::gil_scoped_release unlocked;
            activate(arguments, threads);
        },
        "tokens"_a, "gradient"_a.none(), "output"_a, nb::kw_only(), "activation"_a, "threads"_a = 1,
        "An activation of an array, or a gradient times its derivative.");
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

void bind_likeliest_class(nb::module_& module) {
    module.def(
        "likeliest_class",
        [](nb::handle logits, nb::handle banned, nb::handle classes, nb::handle log_probability, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const LikeliestArguments arguments = call.read_likeliest(logits, banned);
            const LikeliestResults results = {
                call.write_contiguous(classes, "classes", {arguments.rows}, Dtype::int64),
                call.write_contiguous(log_probability, "log_probability", {arguments.rows}, call.accumulation_dtype())};
            const nb::gil_scoped_release unlocked;
            likeliest_class(arguments, results, threads);
        },
        "logits"_a, "banned"_a, "classes"_a, "log_probability"_a, nb::kw_only(), "threads"_a = 1,
        "The most probable class of each row of logits, and its log-probability.");
}

}  // namespace

void bind_training(nb::module_& module) {
    bind_dropout(module);
    bind_activation(module);
    bind_cross_entropy(module);
    bind_likeliest_class(module);
}

}  // namespace regard

// Sublayers of a decoder for few tokens in the Python module.
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"
#include "decode/sublayer_kernels.h"

namespace regard {

void bind_sublayers(nb::module_& module) {
    module.def(
        "feed_forward_sublayer",
        [](nb::handle tokens, nb::handle up, nb::handle gate, nb::handle down, nb::handle output,
           const std::string& activation, nb::handle before, nb::handle of_output, nb::handle after, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const FeedForwardSublayer given =
                call.read_feed_forward(tokens, up, gate, down, output, activation, before, of_output, after);
            const nb::gil_scoped_release unlocked;
            feed_forward_sublayer(given, threads);
        },
        "tokens"_a, "up"_a, "gate"_a.none(), "down"_a, "output"_a, nb::kw_only(), "activation"_a = "identity",
        "before"_a.none() = nb::none(), "of_output"_a.none() = nb::none(), "after"_a.none() = nb::none(),
        "threads"_a = 1, "A feed-forward sublayer of few tokens, with its norms and its residual connection.");
    define<6, 12>(
        module, "attention_sublayer",
        "An attention sublayer of few tokens, with its norms and its residual connection.",
        {"tokens", "query", "key", "value", "mixed", "output"},
        {"query_layer", "key_layer", "value_layer", "output_layer", "before", "of_output", "after", "query_norm",
         "key_norm", "rotation", "softcap", "sinks"},
        [](Call& call, const Objects<6>& arrays, const Objects<12>& further) {
            const AttentionSublayer given = call.read_attention_sublayer(
                arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5],
                {further[0], further[1], further[2], further[3], further[4], further[5], further[6], further[7],
                 further[8], further[9]});
            call.read_cap_and_sinks(further[10], further[11]);
            const nb::gil_scoped_release unlocked;
            attention_sublayer(given, call.problem, call.threads());
        });
}

}  // namespace regard

// Talking-heads attention in the Python module.
#include "bindings/attention_arguments.h"
#include "bindings/bindings.h"
#include "talking_heads/talking_heads_kernels.h"

namespace regard {

namespace {

TalkingHeads read_mixing(Call& call, nb::handle score_mixing, nb::handle weight_mixing) {
    const int64_t heads = call.problem.heads;
    return {call.read(score_mixing, "score_mixing", {heads, heads}, call.accumulation_dtype()),
            call.read(weight_mixing, "weight_mixing", {heads, heads}, call.accumulation_dtype())};
}

}  // namespace

void bind_talking_heads(nb::module_& module) {
    define<6, 1>(
        module, "talking_heads_forward", "Talking-heads attention.",
        {"query", "key", "value", "score_mixing", "weight_mixing", "output"}, {"normalizer"},
        [](Call& call, const Objects<6>& arrays, const Objects<1>& further) {
            read_problem(call, arrays[0], arrays[1], arrays[2], INT64_MAX);
            const TalkingHeads mixing = read_mixing(call, arrays[3], arrays[4]);
            const ForwardResults results = {write_output(call, arrays[5]), {}, {}, write_normalizer(call, further[0])};
            const nb::gil_scoped_release unlocked;
            talking_heads_forward(call.problem, mixing, results, call.threads);
        });
    define<14, 0>(
        module, "talking_heads_backward", "Gradients of talking-heads attention.",
        {"grad_output", "query", "key", "value", "score_mixing", "weight_mixing", "normalizer", "grad_query", "grad_key",
         "grad_value", "grad_score_mixing", "grad_weight_mixing", "grad_bias", "grad_table"},
        {},
        [](Call& call, const Objects<14>& arrays, const Objects<0>&) {
            const Problem& p = call.problem;
            read_problem(call, arrays[1], arrays[2], arrays[3], INT64_MAX);
            const TalkingHeads mixing = read_mixing(call, arrays[4], arrays[5]);
            const Array normalizer = read_normalizer(call, arrays[6]);
            const TalkingHeadsGradients gradients = {
                read_gradients(call, arrays[0], arrays[7], arrays[8], arrays[9], arrays[12], arrays[13]),
                call.write(arrays[10], "grad_score_mixing", {p.heads, p.heads}, call.accumulation_dtype()),
                call.write(arrays[11], "grad_weight_mixing", {p.heads, p.heads}, call.accumulation_dtype())};
            const nb::gil_scoped_release unlocked;
            talking_heads_backward(p, mixing, normalizer, gradients, call.threads);
        });
}

}  // namespace regard

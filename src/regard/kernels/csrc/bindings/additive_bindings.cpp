// Additive attention in the Python module.
#include "bindings/attention_arguments.h"
#include "bindings/bindings.h"

namespace regard {
namespace {

// Reads the problem too, whose head_dim is the inner size, without a limit.
Additive read_additive(Call& call, nb::handle of_query, nb::handle of_key, nb::handle vector, nb::handle value) {
    const Problem& p = call.problem;
    read_problem(call, of_query, of_key, value, INT64_MAX);
    return {p.query, p.key, call.read(vector, "vector", {p.heads, p.head_dim}, call.dtype())};
}

}  // namespace

void bind_additive(nb::module_& module) {
    define<6, 1>(
        module, "additive_forward", "Additive attention, and the logarithm of each row's sum.",
        {"of_query", "of_key", "vector", "value", "output", "lse"}, {"normalizer"},
        [](Call& call, const Objects<6>& arrays, const Objects<1>& further) {
            const Additive additive = read_additive(call, arrays[0], arrays[1], arrays[2], arrays[3]);
            const ForwardResults results = {write_output(call, arrays[4]), write_lse(call, arrays[5]), {},
                                            write_normalizer(call, further[0])};
            const nb::gil_scoped_release unlocked;
            additive_forward(call.problem, additive, results, call.threads);
        });
    define<13, 1>(
        module, "additive_backward", "Gradients of additive attention.",
        {"grad_output", "of_query", "of_key", "vector", "value", "output", "normalizer", "grad_of_query",
         "grad_of_key", "grad_vector", "grad_value", "grad_bias", "grad_table"},
        {"grad_lse"},
        [](Call& call, const Objects<13>& arrays, const Objects<1>& further) {
            const Problem& p = call.problem;
            const Additive additive = read_additive(call, arrays[1], arrays[2], arrays[3], arrays[4]);
            const Array output = read_output(call, arrays[5]), normalizer = read_normalizer(call, arrays[6]);
            const AdditiveGradients gradients = {
                read_gradients(call, arrays[0], arrays[7], arrays[8], arrays[10], arrays[11], arrays[12],
                               "grad_of_query", "grad_of_key"),
                call.write(arrays[9], "grad_vector", {p.heads, p.head_dim}, call.accumulation_dtype()),
                call.read(further[0], "grad_lse", {p.batch, p.heads, p.queries}, call.accumulation_dtype(), accept)};
            const nb::gil_scoped_release unlocked;
            additive_backward(p, additive, {output, {}, {}, normalizer}, gradients, call.threads);
        });
}

}  // namespace regard

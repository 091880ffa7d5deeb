// Additive attention in the Python module.
#include "bindings/bindings.h"
#include "drivers.h"

namespace regard {

void bind_additive(nb::module_& module) {
    define<6, 1>(
        module, "additive_forward", "Additive attention, and the logarithm of each row's sum.",
        {"of_query", "of_key", "vector", "value", "output", "lse"}, {"normalizer"},
        [](Call& call, const Objects<6>& arrays, const Objects<1>& further) {
            call.read_problem(arrays[0], arrays[1], arrays[3], INT64_MAX);
            const Problem& p = call.problem;
            const Array vector = call.read(arrays[2], "vector", {p.heads, p.head_dim}, call.dtype());
            const Additive additive{p.query, p.key, vector};
            const ForwardResults results = {write_output(call, arrays[4]), write_lse(call, arrays[5]), {},
                                            write_normalizer(call, further[0])};
            const nb::gil_scoped_release unlocked;
            additive_forward(p, additive, results, call.threads());
        });
    define<13, 1>(
        module, "additive_backward", "Gradients of additive attention.",
        {"grad_output", "of_query", "of_key", "vector", "value", "output", "normalizer", "grad_of_query",
         "grad_of_key", "grad_vector", "grad_value", "grad_bias", "grad_table"},
        {"grad_lse"},
        [](Call& call, const Objects<13>& arrays, const Objects<1>& further) {
            call.read_problem(arrays[1], arrays[2], arrays[4], INT64_MAX);
            const Problem& p = call.problem;
            const Array vector = call.read(arrays[3], "vector", {p.heads, p.head_dim}, call.dtype());
            const Additive additive{p.query, p.key, vector};
            const Call::Shape outputs{p.batch, p.heads, p.queries, p.value_dim};
            const Array output = call.read(arrays[5], "output", outputs, call.dtype());
            const Array normalizer = read_normalizer(call, arrays[6]);
            AdditiveGradients gradients;
            gradients.output = call.read(arrays[0], "grad_output", outputs, call.dtype());
            gradients.of_query =
                call.write(arrays[7], "grad_of_query", {p.batch, p.heads, p.queries, p.head_dim}, call.dtype());
            gradients.of_key =
                call.write(arrays[8], "grad_of_key", {p.batch, p.key_heads, p.keys, p.head_dim}, call.dtype());
            gradients.vector = call.write(arrays[9], "grad_vector", {p.heads, p.head_dim}, call.accumulation_dtype());
            gradients.value =
                call.write(arrays[10], "grad_value", {p.batch, p.key_heads, p.keys, p.value_dim}, call.dtype());
            gradients.bias = write_gradient(call, arrays[11], "grad_bias", p.bias);
            gradients.table = write_gradient(call, arrays[12], "grad_table", p.table);
            gradients.lse =
                call.read(further[0], "grad_lse", {p.batch, p.heads, p.queries}, call.accumulation_dtype(), accept);
            const nb::gil_scoped_release unlocked;
            additive_backward(p, additive, {output, {}, {}, normalizer}, gradients, call.threads());
        });
}

}  // namespace regard

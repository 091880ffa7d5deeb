// The scan family in the Python module.
#include "bindings/bindings.h"
#include "drivers.h"

namespace regard {

void bind_scan(nb::module_& module) {
    module.def(
        "scan",
        [](nb::handle query, nb::handle key, nb::handle value, nb::handle log_decay, nb::handle beta, nb::handle state,
           nb::handle output, nb::handle final_state, double scale, int threads) {
            Options options;
            options.scale = scale;
            options.threads = threads;
            Call call(options);
            const ScanArguments given = call.read_scan(query, key, value, log_decay, beta, state);
            const ScanResults results = {
                call.write(output, "output", {given.batch, given.heads, given.length, given.value_dim}, call.dtype()),
                call.write(final_state, "final_state", {given.batch, given.heads, given.head_dim, given.value_dim},
                           call.accumulation_dtype())};
            const nb::gil_scoped_release unlocked;
            return !scan(given, results, threads);
        },
        "query"_a, "key"_a, "value"_a, "log_decay"_a.none(), "beta"_a.none(), "state"_a.none(), "output"_a,
        "final_state"_a, nb::kw_only(), "scale"_a = 1.0, "threads"_a = 1, "A state that decays and is updated by tokens.");
    module.def(
        "scan_backward",
        [](nb::handle grad_output, nb::handle grad_final_state, nb::handle query, nb::handle key, nb::handle value,
           nb::handle log_decay, nb::handle beta, nb::handle state, nb::handle grad_query, nb::handle grad_key,
           nb::handle grad_value, nb::handle grad_log_decay, nb::handle grad_beta, nb::handle grad_state, double scale,
           int threads) {
            Options options;
            options.scale = scale;
            options.threads = threads;
            Call call(options);
            const ScanArguments given = call.read_scan(query, key, value, log_decay, beta, state);
            const auto write = [&](nb::handle object, const char* name, const Array& of) -> Array {
                if (!of && object.is_none()) return {};
                if (!of) throw nb::value_error((std::string(name) + ": there is nothing it would be the gradient of").c_str());
                return call.write(object, name, {of.shape[0], of.shape[1], of.shape[2], of.shape[3]}, of.dtype);
            };
            ScanGradients gradients;
            gradients.output = call.read(grad_output, "grad_output",
                                         {given.batch, given.heads, given.length, given.value_dim}, call.dtype());
            gradients.final_state =
                call.read(grad_final_state, "grad_final_state",
                          {given.batch, given.heads, given.head_dim, given.value_dim}, call.accumulation_dtype(), accept);
            gradients.query = write(grad_query, "grad_query", given.query);
            gradients.key = write(grad_key, "grad_key", given.key);
            gradients.value = write(grad_value, "grad_value", given.value);
            gradients.log_decay = write(grad_log_decay, "grad_log_decay", given.log_decay);
            gradients.beta = write(grad_beta, "grad_beta", given.beta);
            gradients.state = write(grad_state, "grad_state", given.state);
            const nb::gil_scoped_release unlocked;
            scan_backward(given, gradients, threads);
        },
        "grad_output"_a, "grad_final_state"_a.none(), "query"_a, "key"_a, "value"_a, "log_decay"_a.none(),
        "beta"_a.none(), "state"_a.none(), "grad_query"_a, "grad_key"_a, "grad_value"_a, "grad_log_decay"_a.none(),
        "grad_beta"_a.none(), "grad_state"_a.none(), nb::kw_only(), "scale"_a = 1.0, "threads"_a = 1,
        "Gradients of a scan.");
}

}  // namespace regard

// The scan family in the Python module.
#include <algorithm>

#include "bindings/bindings.h"
#include "drivers.h"

namespace regard {
namespace {

constexpr int64_t max_scan_dim = 1024;

// Reads the arguments of a scan. The last three may be None, and in the dtype of the others or in wide precision.
ScanArguments read_arguments(Call& call, nb::handle query, nb::handle key, nb::handle value, nb::handle log_decay,
                             nb::handle beta, nb::handle state, double scale) {
    ScanArguments given;
    given.query = call.take(query, "query");
    check_floating(given.query, "query");
    call.problem.query = given.query;
    given.batch = given.query.shape[0];
    given.heads = given.query.shape[1];
    given.length = given.query.shape[2];
    given.head_dim = given.query.shape[3];
    given.value_dim = call.take(value, "value").shape[3];
    given.scale = scale;
    require(given.head_dim >= 1 && given.head_dim <= max_scan_dim, "query: head_dim is out of range");
    require(given.value_dim >= 1 && given.value_dim <= max_scan_dim, "value: value_dim is out of range");
    require(given.length <= max_length, "query: too long");
    check_countable({given.batch, given.heads, given.length, std::max(given.head_dim, given.value_dim)});
    check_countable({given.batch, given.heads, ceil_div(given.length, tile), given.head_dim, given.value_dim});
    given.key = call.read(key, "key", {given.batch, given.heads, given.length, given.head_dim}, call.dtype());
    given.value = call.read(value, "value", {given.batch, given.heads, given.length, given.value_dim}, call.dtype());
    const auto read_wide = [&](nb::handle object, const char* name, Call::Shape shape) {
        const Array array = call.take(object, name, accept);
        if (array && array.dtype != call.dtype()) check_dtype(array, name, call.accumulation_dtype());
        if (array) check_shape(array, name, shape);
        return array;
    };
    const Array decay = call.take(log_decay, "log_decay", accept);
    const int64_t channels = !decay || decay.shape[3] == 1 ? 1 : given.head_dim;
    given.log_decay = read_wide(log_decay, "log_decay", {given.batch, given.heads, given.length, channels});
    given.beta = read_wide(beta, "beta", {given.batch, given.heads, given.length, 1});
    given.state = read_wide(state, "state", {given.batch, given.heads, given.head_dim, given.value_dim});
    return given;
}

std::pair<ScanArguments, ScanResults> read_scan(Call& call, nb::handle query, nb::handle key, nb::handle value,
                                                nb::handle log_decay, nb::handle beta, nb::handle state,
                                                nb::handle output, nb::handle final_state, double scale) {
    const ScanArguments given = read_arguments(call, query, key, value, log_decay, beta, state, scale);
    const Array of_output =
        call.write(output, "output", {given.batch, given.heads, given.length, given.value_dim}, call.dtype());
    return {given, {of_output, call.write(final_state, "final_state",
                                          {given.batch, given.heads, given.head_dim, given.value_dim},
                                          call.accumulation_dtype())}};
}

std::pair<ScanArguments, ScanGradients> read_backward(
    Call& call, nb::handle grad_output, nb::handle grad_final_state, nb::handle query, nb::handle key, nb::handle value,
    nb::handle log_decay, nb::handle beta, nb::handle state, nb::handle grad_query, nb::handle grad_key,
    nb::handle grad_value, nb::handle grad_log_decay, nb::handle grad_beta, nb::handle grad_state, double scale) {
    const ScanArguments given = read_arguments(call, query, key, value, log_decay, beta, state, scale);
    ScanGradients gradients;
    gradients.output =
        call.read(grad_output, "grad_output", {given.batch, given.heads, given.length, given.value_dim}, call.dtype());
    gradients.final_state =
        call.read(grad_final_state, "grad_final_state", {given.batch, given.heads, given.head_dim, given.value_dim},
                  call.accumulation_dtype(), accept);
    gradients.query = call.write_gradient(grad_query, "grad_query", given.query);
    gradients.key = call.write_gradient(grad_key, "grad_key", given.key);
    gradients.value = call.write_gradient(grad_value, "grad_value", given.value);
    gradients.log_decay = call.write_gradient(grad_log_decay, "grad_log_decay", given.log_decay);
    gradients.beta = call.write_gradient(grad_beta, "grad_beta", given.beta);
    gradients.state = call.write_gradient(grad_state, "grad_state", given.state);
    return {given, gradients};
}

}  // namespace

void bind_scan(nb::module_& module) {
    module.def("scan", operation(read_scan, scan), "query"_a, "key"_a, "value"_a, "log_decay"_a.none(), "beta"_a.none(),
               "state"_a.none(), "output"_a, "final_state"_a, nb::kw_only(), "scale"_a = 1.0, "threads"_a = 1,
               "A state that decays and is updated by tokens.");
    module.def("scan_backward", operation(read_backward, scan_backward), "grad_output"_a, "grad_final_state"_a.none(),
               "query"_a, "key"_a, "value"_a, "log_decay"_a.none(), "beta"_a.none(), "state"_a.none(), "grad_query"_a,
               "grad_key"_a, "grad_value"_a, "grad_log_decay"_a.none(), "grad_beta"_a.none(), "grad_state"_a.none(),
               nb::kw_only(), "scale"_a = 1.0, "threads"_a = 1, "Gradients of a scan.");
}

}  // namespace regard

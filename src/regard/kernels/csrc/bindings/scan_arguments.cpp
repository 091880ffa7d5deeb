// The arguments of a scan.
#include "bindings/arguments.h"

#include <algorithm>

#include "bindings/argument_checks.h"

namespace nb = nanobind;

namespace regard {

ScanArguments Call::read_scan(nb::handle query, nb::handle key, nb::handle value, nb::handle log_decay, nb::handle beta,
                              nb::handle state) {
    ScanArguments given;
    given.query = take(query, "query");
    check_floating(given.query, "query");
    problem.query = given.query;
    given.batch = given.query.shape[0];
    given.heads = given.query.shape[1];
    given.length = given.query.shape[2];
    given.head_dim = given.query.shape[3];
    given.value_dim = take(value, "value").shape[3];
    given.scale = options_.scale;
    require(given.head_dim >= 1 && given.head_dim <= max_scan_dim, "query: head_dim is out of range");
    require(given.value_dim >= 1 && given.value_dim <= max_scan_dim, "value: value_dim is out of range");
    require(given.length <= max_length, "query: too long");
    check_countable({given.batch, given.heads, given.length, std::max(given.head_dim, given.value_dim)});
    check_countable({given.batch, given.heads, ceil_div(given.length, tile), given.head_dim, given.value_dim});
    given.key = read(key, "key", {given.batch, given.heads, given.length, given.head_dim}, dtype());
    given.value = read(value, "value", {given.batch, given.heads, given.length, given.value_dim}, dtype());
    const auto read_wide = [&](nb::handle object, const char* name, Shape shape) {
        const Array array = take(object, name, None::accept);
        if (array && array.dtype != dtype()) check_dtype(array, name, accumulation_dtype());
        if (array) check_shape(array, name, shape);
        return array;
    };
    const Array decay = take(log_decay, "log_decay", None::accept);
    const int64_t channels = !decay || decay.shape[3] == 1 ? 1 : given.head_dim;
    given.log_decay = read_wide(log_decay, "log_decay", {given.batch, given.heads, given.length, channels});
    given.beta = read_wide(beta, "beta", {given.batch, given.heads, given.length, 1});
    given.state = read_wide(state, "state", {given.batch, given.heads, given.head_dim, given.value_dim});
    return given;
}

}  // namespace regard

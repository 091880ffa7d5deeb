#include "bindings/arguments.h"

#include <algorithm>

#include "runtime/huge_pages.h"

namespace nb = nanobind;

namespace regard {
namespace {

bool is_floating(Dtype dtype) {
    return dtype == Dtype::float32 || dtype == Dtype::float64 || dtype == Dtype::bfloat16 || dtype == Dtype::float16;
}

bool is_contiguous(const Array& array) {
    int64_t stride = 1;
    for (int axis = 3; axis >= 0; --axis) {
        if (array.shape[axis] != 1 && array.stride[axis] != stride) return false;
        stride *= array.shape[axis];
    }
    return true;
}

// Asks for huge pages for an array in any order of its axes, as results are new memory. Between the elements of others
// there is memory that belongs to something else.
void advise_where_dense(const Array& array) {
    int64_t count = 1, last = 0;
    for (int axis = 0; axis < 4; ++axis) {
        count *= array.shape[axis];
        last += (array.shape[axis] - 1) * array.stride[axis];
    }
    if (last + 1 == count) advise_huge_pages(array.data, static_cast<size_t>(count) * dtype_size(array.dtype));
}

void require_array(nb::handle object, const char* name, Call::None none) {
    if (object.is_none() && none == Call::None::reject)
        throw_value_error(std::string(name) + ": expected an array, got None");
}

}  // namespace

std::string shape_text(const int64_t* shape, int dimensions) {
    std::string listed;
    for (int axis = 0; axis < dimensions; ++axis) listed += (axis ? ", " : "") + std::to_string(shape[axis]);
    return "(" + listed + ")";
}

void throw_value_error(const std::string& what) { throw nb::value_error(what.c_str()); }

void require(bool holds, const char* what) {
    if (!holds) throw_value_error(what);
}

void require_pair(const Array& array, const char* name, const Array& needed, const char* name_of_needed) {
    if (array && !needed) throw_value_error(std::string(name) + ": expected " + name_of_needed + " as well");
}

nb::tuple take_tuple(nb::handle object, const char* name, size_t size) {
    if (!nb::isinstance<nb::tuple>(object)) throw_value_error(std::string(name) + ": expected a tuple");
    nb::tuple taken = nb::borrow<nb::tuple>(object);
    if (taken.size() != size) throw_value_error(std::string(name) + ": expected " + std::to_string(size) + " elements");
    return taken;
}

void check_dtype(const Array& array, const char* name, Dtype dtype) {
    if (array.dtype == dtype) return;
    const std::string what =
        std::string(name) + ": expected dtype " + dtype_name(dtype) + ", got " + dtype_name(array.dtype);
    throw nb::type_error(what.c_str());
}

void check_floating(const Array& array, const char* name) {
    if (is_floating(array.dtype)) return;
    const std::string what = std::string(name) + ": expected a floating dtype, got " + dtype_name(array.dtype);
    throw nb::type_error(what.c_str());
}

void check_shape(const Array& array, const char* name, std::initializer_list<int64_t> shape) {
    int64_t expected[4] = {1, 1, 1, 1};
    std::copy(shape.begin(), shape.end(), expected + 4 - shape.size());
    if (std::equal(expected, expected + 4, array.shape)) return;
    throw_value_error(std::string(name) + ": expected shape " + shape_text(expected, 4) + ", got " +
                      shape_text(array.shape, 4));
}

void check_countable(std::initializer_list<int64_t> sizes) {
    int64_t product = 64;
    for (int64_t size : sizes) {
        if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) {
            throw_value_error("the sizes exceed what can be counted");
        }
    }
}

bool is_empty(const Array& array) {
    return std::any_of(array.shape, array.shape + 4, [](int64_t size) { return size == 0; });
}

Call::Call(int threads, const Options& options) : options(options), threads(threads) {
    require(threads >= 1, "threads: expected at least 1");
    set_dropout(options.dropout, options.seed);
    problem.scale = options.scale;
    problem.table_lowest = options.table_lowest;
}

void Call::set_dropout(double dropout, int64_t seed) {
    require(dropout >= 0 && dropout < 1, "dropout: expected 0 <= dropout < 1");
    problem.dropout = dropout;
    problem.seed = static_cast<uint64_t>(seed);
}

Array Call::take(nb::handle object, const char* name, None none) {
    require_array(object, name, none);
    return borrowed_.take(object, name);
}

Array Call::read(nb::handle object, const char* name, Shape shape, Dtype dtype, None none) {
    const Array array = take(object, name, none);
    if (!array) return array;
    check_dtype(array, name, dtype);
    check_shape(array, name, shape);
    return array;
}

Array Call::write(nb::handle object, const char* name, Shape shape, Dtype dtype, None none) {
    require_array(object, name, none);
    const Array array = borrowed_.take(object, name, BorrowedArrays::Access::write);
    if (!array) return array;
    check_dtype(array, name, dtype);
    check_shape(array, name, shape);
    for (int axis = 0; axis < 4; ++axis) {
        if (array.shape[axis] > 1 && array.stride[axis] == 0 && !is_empty(array)) {
            throw_value_error(std::string(name) + ": it is to be written and its elements share memory");
        }
    }
    advise_where_dense(array);
    return array;
}

Array Call::write_gradient(nb::handle object, const char* name, const Array& of, Dtype dtype, None none) {
    if (of) return write(object, name, {of.shape[0], of.shape[1], of.shape[2], of.shape[3]}, dtype, none);
    if (!object.is_none()) throw_value_error(std::string(name) + ": there is nothing it would be the gradient of");
    return {};
}

Array Call::read_copy(nb::handle object, const char* name, Shape shape, Dtype dtype) {
    return copy(read(object, name, shape, dtype));
}

Array Call::read_indices(nb::handle object, const char* name, int64_t stop, None none) {
    const Array array = take(object, name, none);
    if (!array) return array;
    const Array indices = read_copy(object, name, {array.shape[3]}, Dtype::int64);
    for (int64_t i = 0; i < indices.shape[3]; ++i) {
        const int64_t index = static_cast<const int64_t*>(indices.data)[i];
        if (index < 0 || index >= stop) throw_value_error(std::string(name) + ": an index is out of range");
    }
    return indices;
}

const int32_t* Call::copy_indices(nb::handle object, const char* name, Shape shape, int64_t stop) {
    const auto* indices = copy_numbers<int32_t>(object, name, shape);
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    for (int64_t i = 0; i < count; ++i) {
        if (indices[i] < -1 || indices[i] >= stop)
            throw_value_error(std::string(name) + ": an index is out of range");
    }
    return indices;
}

Array Call::read_contiguous(nb::handle object, const char* name, Shape shape, Dtype dtype, None none) {
    const Array array = read(object, name, shape, dtype, none);
    if (!is_empty(array) && !is_contiguous(array))
        throw_value_error(std::string(name) + ": expected contiguous elements");
    return array;
}

Array Call::write_contiguous(nb::handle object, const char* name, Shape shape, Dtype dtype, None none) {
    read_contiguous(object, name, shape, dtype, none);
    return write(object, name, shape, dtype, none);
}

Array Call::broadcast(nb::handle object, const char* name, int64_t columns) {
    Array array = take(object, name, accept);
    if (!array) return array;
    const int64_t whole[4] = {problem.batch, problem.heads, problem.queries, columns};
    for (int axis = 0; axis < 4; ++axis) {
        if (array.shape[axis] == 1) {
            array.stride[axis] = 0;
        } else if (array.shape[axis] != whole[axis]) {
            throw_value_error(std::string(name) + ": expected a shape that broadcasts to " + shape_text(whole, 4) +
                              ", got " + shape_text(array.shape, 4));
        }
    }
    return array;
}

}  // namespace regard

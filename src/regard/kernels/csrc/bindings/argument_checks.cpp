#include "bindings/argument_checks.h"

#include <nanobind/nanobind.h>

#include <algorithm>

namespace nb = nanobind;

namespace regard {
namespace {

bool is_floating(Dtype dtype) {
    return dtype == Dtype::float32 || dtype == Dtype::float64 || dtype == Dtype::bfloat16 || dtype == Dtype::float16;
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

bool is_empty(const Array& array) {
    return std::any_of(array.shape, array.shape + 4, [](int64_t size) { return size == 0; });
}

bool is_contiguous(const Array& array) {
    int64_t stride = 1;
    for (int axis = 3; axis >= 0; --axis) {
        if (array.shape[axis] != 1 && array.stride[axis] != stride) return false;
        stride *= array.shape[axis];
    }
    return true;
}

void check_countable(std::initializer_list<int64_t> sizes) {
    int64_t product = 64;
    for (int64_t size : sizes) {
        if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) {
            throw_value_error("the sizes exceed what can be counted");
        }
    }
}

}  // namespace regard

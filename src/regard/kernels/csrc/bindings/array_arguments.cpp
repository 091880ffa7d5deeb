// Arrays as arguments: read, copied or written.
#include "bindings/arguments.h"

#include "bindings/argument_checks.h"
#include "runtime/huge_pages.h"

namespace nb = nanobind;

namespace regard {
namespace {

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

}  // namespace

Array Call::take(nb::handle object, const char* name, None none) {
    if (object.is_none() && none == None::reject) throw_value_error(std::string(name) + ": expected an array, got None");
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
    if (object.is_none() && none == None::reject) throw_value_error(std::string(name) + ": expected an array, got None");
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

Array Call::read_copy(nb::handle object, const char* name, Shape shape, Dtype dtype) {
    return borrowed_.copy(read(object, name, shape, dtype), BorrowedArrays::Broadcast::expand);
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

void Call::require_pair(const Array& array, const char* name, const Array& needed, const char* name_of_needed) {
    if (array && !needed) throw_value_error(std::string(name) + ": expected " + name_of_needed + " as well");
}

Array Call::read_contiguous(nb::handle object, const char* name, Shape shape, Dtype dtype) {
    const Array array = read(object, name, shape, dtype);
    if (!is_empty(array) && !is_contiguous(array))
        throw_value_error(std::string(name) + ": expected contiguous elements");
    return array;
}

Array Call::write_contiguous(nb::handle object, const char* name, Shape shape, Dtype dtype) {
    read_contiguous(object, name, shape, dtype);
    return write(object, name, shape, dtype);
}

}  // namespace regard

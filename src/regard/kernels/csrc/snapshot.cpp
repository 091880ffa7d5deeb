#include "snapshot.h"

#include <algorithm>

namespace nb = nanobind;

namespace regard {
namespace {

bool is_same(const Array& one, const Array& other) {
    return one.data == other.data && one.dtype == other.dtype && std::equal(one.shape, one.shape + 4, other.shape) &&
           std::equal(one.stride, one.stride + 4, other.stride);
}

}  // namespace

void Snapshot::add_dict(nb::handle dict) {
    if (!nb::isinstance<nb::dict>(dict)) throw nb::type_error("dicts: expected dicts");
    Dict taken{nb::borrow(dict), {}};
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(dict.ptr(), &at, &key, &value);)
        taken.entries.emplace_back(nb::borrow(key), nb::borrow(value));
    dicts_.push_back(std::move(taken));
}

bool Snapshot::add_array(nb::handle array) {
    BorrowedArrays borrowed;
    const Array as_read = borrowed.take(array, "arrays");
    arrays_.push_back({nb::borrow(array), as_read});
    return borrowed.is_in_place();
}

bool Snapshot::holds() const {
    for (const Dict& one : dicts_) {
        if (PyDict_Size(one.dict.ptr()) != static_cast<Py_ssize_t>(one.entries.size())) return false;
        PyObject *key, *value;
        Py_ssize_t at = 0;
        for (const auto& [key_before, value_before] : one.entries)
            if (!PyDict_Next(one.dict.ptr(), &at, &key, &value) || key != key_before.ptr() || value != value_before.ptr())
                return false;
    }
    BorrowedArrays borrowed;
    return std::all_of(arrays_.begin(), arrays_.end(), [&](const Stored& stored) {
        return is_same(borrowed.take(stored.array, "arrays"), stored.as_read);
    });
}

}  // namespace regard

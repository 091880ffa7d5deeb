#include "snapshot.h"

namespace nb = nanobind;

namespace regard {
namespace {

constexpr size_t ahead = 16;  // entries whose objects are fetched ahead: between two checks they leave the caches

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

bool Snapshot::holds() const { return dicts_hold() && arrays_hold(); }

bool Snapshot::dicts_hold() const {
    for (size_t i = 0; i < dicts_.size(); ++i) {
        if (i + ahead < dicts_.size()) __builtin_prefetch(dicts_[i + ahead].dict.ptr());
        const Dict& one = dicts_[i];
        if (PyDict_Size(one.dict.ptr()) != static_cast<Py_ssize_t>(one.entries.size())) return false;
        PyObject *key, *value;
        Py_ssize_t at = 0;
        for (const auto& [key_before, value_before] : one.entries)
            if (!PyDict_Next(one.dict.ptr(), &at, &key, &value) || key != key_before.ptr() || value != value_before.ptr())
                return false;
    }
    return true;
}

bool Snapshot::arrays_hold() const {
    BorrowedArrays borrowed;
    for (size_t i = 0; i < arrays_.size(); ++i) {
        if (i + ahead < arrays_.size()) __builtin_prefetch(arrays_[i + ahead].array.ptr());
        if (!borrowed.is_still(arrays_[i].array, arrays_[i].as_read)) return false;
    }
    return true;
}

}  // namespace regard

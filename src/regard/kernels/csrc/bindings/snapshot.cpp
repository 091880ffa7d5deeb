#include "bindings/snapshot.h"

namespace nb = nanobind;

namespace regard {
namespace {

constexpr size_t ahead = 16;  // objects that are fetched ahead: between two checks they leave the caches

}  // namespace

void Snapshot::add_dict(nb::handle dict) {
    if (!nb::isinstance<nb::dict>(dict)) throw nb::type_error("dicts: expected dicts");
    held_.push_back(nb::borrow(dict));
    size_t count = 0;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(dict.ptr(), &at, &key, &value); ++count) {
        entries_.push_back({key, value});
        held_.push_back(nb::borrow(key));
        held_.push_back(nb::borrow(value));
    }
    if (count == 0)
        empty_.push_back(dict.ptr());
    else
        dicts_.push_back({dict.ptr(), count});
}

bool Snapshot::add_array(nb::handle array) {
    BorrowedArrays borrowed;
    const Array as_read = borrowed.take(array, "arrays");
    held_.push_back(nb::borrow(array));
    arrays_.push_back({array.ptr(), BorrowedArrays::find_sizes(array), as_read});
    return borrowed.is_in_place();
}

bool Snapshot::holds() const { return are_empty() && dicts_hold() && arrays_hold(); }

bool Snapshot::are_empty() const {
    for (size_t i = 0; i < empty_.size(); ++i) {
        if (i + ahead < empty_.size()) __builtin_prefetch(empty_[i + ahead]);
        if (PyDict_Size(empty_[i]) != 0) return false;
    }
    return true;
}

bool Snapshot::dicts_hold() const {
    const Entry* before = entries_.data();
    for (size_t i = 0; i < dicts_.size(); ++i) {
        if (i + ahead < dicts_.size()) __builtin_prefetch(dicts_[i + ahead].dict);
        const auto [dict, count] = dicts_[i];
        if (PyDict_Size(dict) != static_cast<Py_ssize_t>(count)) return false;
        PyObject *key, *value;
        Py_ssize_t at = 0;
        for (size_t entry = 0; entry < count; ++entry, ++before)
            if (!PyDict_Next(dict, &at, &key, &value) || key != before->key || value != before->value) return false;
    }
    return true;
}

bool Snapshot::arrays_hold() const {
    BorrowedArrays borrowed;
    for (size_t i = 0; i < arrays_.size(); ++i) {
        if (i + ahead < arrays_.size()) {
            const Stored& later = arrays_[i + ahead];
            __builtin_prefetch(later.array);
            // The sizes are inside of the object that has the address of the memory, too.
            for (int64_t line = -64; later.sizes != nullptr && line <= 64; line += 64) __builtin_prefetch(later.sizes + line);
        }
        if (!borrowed.is_still(arrays_[i].array, arrays_[i].as_read)) return false;
    }
    return true;
}

}  // namespace regard

// What Python objects hold at a time: the entries of dicts, and the memory, dtype, sizes and strides of arrays.
//
// What was read from them stays right while it holds. Every entry is held too, so that no other object can get its
// address, and compared by identity, which takes a few nanoseconds each.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "bindings/array.h"

namespace regard {

class Snapshot {
public:
    // Takes the entries of a dict. Raises TypeError for other objects.
    void add_dict(nanobind::handle dict);
    // Takes where and how an array is stored. Raises as BorrowedArrays::take. False for an array whose memory is not its
    // value, so that one who reads it has to copy it: copies are not followed.
    bool add_array(nanobind::handle array);

    // Whether each dict and array is as it was.
    bool holds() const;

private:
    struct Entry {
        PyObject *key, *value;
    };
    struct Dict {
        PyObject* dict;
        size_t count;
    };
    struct Stored {
        PyObject* array;
        const char* sizes;
        Array as_read;
    };

    bool are_empty() const;
    bool dicts_hold() const;
    bool arrays_hold() const;

    // Most dicts are empty, as those of hooks. What is compared is in few lines of the cache, apart from its owners.
    std::vector<PyObject*> empty_;
    std::vector<Dict> dicts_;
    std::vector<Entry> entries_;  // of each dict, one after the other
    std::vector<Stored> arrays_;
    std::vector<nanobind::object> held_;
};

}  // namespace regard

// What Python objects hold at a time: the entries of dicts, and the memory, dtype, sizes and strides of arrays.
//
// What was read from them stays right while it holds. Every entry is held too, so that no other object can get its
// address, and compared by identity, which takes a few nanoseconds each.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "array.h"

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
    bool dicts_hold() const;
    bool arrays_hold() const;

    struct Dict {
        nanobind::object dict;
        std::vector<std::pair<nanobind::object, nanobind::object>> entries;
    };
    struct Stored {
        nanobind::object array;
        Array as_read;
    };

    std::vector<Dict> dicts_;
    std::vector<Stored> arrays_;
};

}  // namespace regard

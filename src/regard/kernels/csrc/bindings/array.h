// Access to Python objects as arrays through DLPack, without copies if memory contains the values as they are.
//
// Types with ``__dlpack_c_exchange_api__`` (torch) are read through a C function that creates no Python object;
// all others through ``__dlpack__``, whose capsule is kept alive while the array is in use.
// The memory layout follows the DLPack specification, version 1.
//
// Every array of every operation passes through ``BorrowedArrays::take``. It replaces tensors whose memory is not their
// value (torch's negative bit, and its zero tensors without memory), and copies arrays at misaligned addresses.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "runtime/parallel.h"
#include "tiles/problem.h"

namespace regard {

const char* dtype_name(Dtype dtype);

// Arrays of Python objects, borrowed for one call. The caller keeps the objects alive.
class BorrowedArrays {
public:
    enum class Access { read, write };

    // Returns the array of an object, absent for None. Up to four dimensions, in the CPU's memory.
    // Raises TypeError for objects that are not arrays or have an unknown dtype, ValueError for inaccessible memory.
    Array take(nanobind::handle object, const char* name, Access use = Access::read);

    // Whether an object's array is still as `take` returned it, in the memory of the object. Where elements are packed,
    // torch's negative bit is not asked for, which takes as long as the rest: it is that of views of complex tensors, in
    // which there is an element between two others.
    bool is_still(nanobind::handle object, const Array& array);

    // The address of an object's sizes, near to what `is_still` reads, to be prefetched; null if it is not known. It may
    // be out of date, which does no harm.
    static const char* find_sizes(nanobind::handle object);

    enum class Broadcast { keep, expand };
    // Copies an array to contiguous memory of its own. An axis of stride 0 is kept or expanded.
    Array copy(const Array& array, Broadcast broadcast);

    // Whether all arrays are in the memory of their objects: none was copied, and no object takes the place of another.
    bool is_in_place() const { return held_.empty() && copies_.empty(); }

private:
    std::vector<nanobind::object> held_;  // capsules, and tensors that replace others
    std::vector<Scratch> copies_;
};

}  // namespace regard

// Python objects as arrays, through DLPack, without copies where memory holds the values as they are.
//
// A type that has ``__dlpack_c_exchange_api__`` (torch) is asked through a C function that makes no Python object;
// any other through ``__dlpack__``, whose capsule is kept while the array is in use.
// The layout of memory is that of the DLPack specification, version 1.
//
// Every array of every operation comes through ``BorrowedArrays::take``. So this is where a tensor is replaced whose
// memory is not its value (torch's negative bit and its tensors of zeros without memory), and where numbers that lie at
// odd addresses are copied.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "parallel.h"
#include "problem.h"

namespace regard {

size_t dtype_size(Dtype dtype);
const char* dtype_name(Dtype dtype);

// Arrays that belong to Python objects, borrowed for one call. The objects themselves are held by the caller.
class BorrowedArrays {
public:
    enum class Access { read, write };

    // The object's array, absent for None. Up to four dimensions, in the CPU's memory.
    // Raises TypeError for what is no array or has an unknown dtype, ValueError for what cannot be reached as it is.
    Array take(nanobind::handle object, const char* name, Access use = Access::read);

    enum class Broadcast { keep, expand };
    // The same numbers in memory that nobody else writes to, side by side. An axis of stride 0 is kept or expanded.
    Array copy(const Array& array, Broadcast broadcast);

private:
    std::vector<nanobind::object> held_;  // capsules, and tensors that stand for others
    std::vector<Scratch> copies_;
};

}  // namespace regard

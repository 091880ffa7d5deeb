// Python objects as arrays, without copies, through DLPack.
//
// A type that has ``__dlpack_c_exchange_api__`` (torch) is asked through a C function that makes no Python object;
// any other through ``__dlpack__``, whose capsule is kept while the array is in use.
// The layout of memory is that of the DLPack specification, version 1.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "problem.h"

namespace regard {

size_t size_of(Dtype dtype);
const char* name_of(Dtype dtype);

// Arrays that belong to Python objects, borrowed for one call. The objects themselves are held by the caller.
class Borrowed {
public:
    enum class For { reading, writing };

    // The object's array, absent for None. Up to four dimensions, in the CPU's memory.
    // Raises TypeError for what is no array or has an unknown dtype, ValueError for what cannot be reached as it is.
    Array take(nanobind::handle object, const char* name, For use = For::reading);

private:
    std::vector<nanobind::object> capsules_;
};

}  // namespace regard

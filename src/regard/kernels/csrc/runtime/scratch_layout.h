// Divides one block of scratch memory into parts, each starting on its own cache line.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Without a block, `take` returns null and only counts the bytes; so kernels tell drivers how much scratch they need.
struct ScratchLayout {
    char* block;
    size_t used_bytes = 0;

    template <class T>
    REGARD_INLINE T* take(int64_t count) {
        REGARD_ASSERT(count >= 0);
        T* part = block ? (T*)(block + used_bytes) : nullptr;
        used_bytes += align_up(sizeof(T) * (size_t)count);
        return part;
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

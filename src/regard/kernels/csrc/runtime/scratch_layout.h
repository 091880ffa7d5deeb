// Divides one block of scratch memory into parts, each starting on its own cache line.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tiles/problem.h"

namespace regard {

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
    // The same for a member of an object; without an object it only counts.
    template <class Object, class T>
    REGARD_INLINE void take(Object* into, T* Object::*member, int64_t count) {
        T* part = take<T>(count);
        if (into) into->*member = part;
    }
};

// The bytes of a block that a function divides, which is called with a layout.
template <class Divide>
REGARD_INLINE size_t bytes_of_parts(Divide divide) {
    ScratchLayout layout{nullptr};
    divide(layout);
    return layout.used_bytes;
}

}  // namespace regard

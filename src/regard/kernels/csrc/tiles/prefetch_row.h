// Prefetches a row of tokens, which lie far apart in memory, so that no processor foresees the next one.
#pragma once

#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class T>
REGARD_INLINE void prefetch_row(const T* row, int64_t size) {
    const int64_t bytes = size * (int64_t)sizeof(T) < 512 ? size * (int64_t)sizeof(T) : 512;
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch((const char*)row + b);
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

#include "huge_pages.h"

#include <stdint.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace regard {

namespace {

#if defined(__linux__) && defined(MADV_HUGEPAGE)
constexpr size_t least_bytes = size_t{4} << 20;
constexpr uintptr_t page = 4096;  // the smallest one: other systems round the block themselves
#endif

}  // namespace

void advise_huge_pages(void* data, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes < least_bytes) return;
    const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t stop = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    madvise(reinterpret_cast<void*>(first), stop - first, MADV_HUGEPAGE);  // only advice: an error changes nothing
#else
    (void)data, (void)bytes;
#endif
}

}  // namespace regard

#include "runtime/huge_pages.h"

#include <stdint.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace regard {

void advise_huge_pages(void* data, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t page = uintptr_t{2} << 20;
    if (bytes < 2 * page) return;
    const uintptr_t address = reinterpret_cast<uintptr_t>(data);
    const uintptr_t first = (address + page - 1) / page * page, last = (address + bytes) / page * page;
    (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

}  // namespace regard

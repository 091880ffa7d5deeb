// Huge pages for memory that is written for the first time.
//
// New memory costs a page fault for each page, and with pages of 4 KiB that takes a third of the time of a kernel that
// reads and writes each number a few times. Linux gives pages of 2 MiB to memory for which they are asked, with its usual
// setting "madvise" of transparent huge pages. NumPy asks for them from the same size on. Results are new memory in each
// call: above 32 MiB the C library returns what is freed to the system.
#pragma once

#include <stddef.h>

namespace regard {

// Asks for huge pages for a block, if it is large; nothing happens on systems without them.
void advise_huge_pages(void* data, size_t bytes);

}  // namespace regard

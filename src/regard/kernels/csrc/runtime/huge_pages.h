// Huge pages: Linux is asked for pages of 2 MiB in place of 4 KiB where results are written.
#pragma once

#include <stddef.h>

namespace regard {

// Advises the system to back memory with huge pages where it has no pages yet: call before anything is written. Each
// first write to a page of new memory enters the system, which clears the page: 512 times as often with small pages,
// and in a virtual machine each costs several hundred nanoseconds. Reading is faster too, as fewer addresses are looked
// up. It takes the same memory, for only whole huge pages inside of the block are meant. NumPy does so from 4 MiB on.
// Does nothing for small blocks and on systems other than Linux; the system need not follow the advice.
void advise_huge_pages(void* data, size_t bytes);

}  // namespace regard

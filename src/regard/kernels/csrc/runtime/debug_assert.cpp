#include "runtime/debug_assert.h"

#if REGARD_ASSERTIONS
#include <cstdio>
#include <cstdlib>

namespace regard {

void end_at_failed_assertion(const char* condition, const char* file, int line) {
    std::fprintf(stderr, "regard: the assertion %s of %s:%d does not hold\n", condition, file, line);
    std::abort();
}

}  // namespace regard
#endif

// REGARD_ASSERT(condition): a range, an index or a count is what the code around it relies on. In builds with sanitizers and in
// debug builds a condition that does not hold ends the process, with a message; in other builds it is not evaluated.
#pragma once

#if REGARD_ASSERTIONS
namespace regard {
[[noreturn]] void end_at_failed_assertion(const char* condition, const char* file, int line);
}
#define REGARD_ASSERT(condition) \
    ((condition) ? (void)0 : ::regard::end_at_failed_assertion(#condition, __FILE__, __LINE__))
#else
#define REGARD_ASSERT(condition) ((void)0)
#endif

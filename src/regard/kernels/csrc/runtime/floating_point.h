// The floating-point environment of a thread: round to nearest, with subnormal numbers, and without traps.
//
// The environment is per thread. A thread inherits it from the one that started it, and torch.set_flush_denormal and
// C's fesetround change it for one thread only, so that the result of a task would depend on the thread that computes
// it. So each thread switches to the default while it runs tasks, and back afterwards.
#pragma once

#include <stdint.h>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <fenv.h>
#endif

namespace regard {

class DefaultFloatingPoint {
public:
    DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
    DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

#if defined(__x86_64__) || defined(_M_X64)
    DefaultFloatingPoint() : saved_state_(_mm_getcsr()) {
        if ((saved_state_ & ~flags) != default_flags) _mm_setcsr(default_flags | (saved_state_ & flags));
    }
    ~DefaultFloatingPoint() {
        if ((saved_state_ & ~flags) != default_flags) _mm_setcsr((saved_state_ & ~flags) | (_mm_getcsr() & flags));
    }

private:
    static constexpr uint32_t flags = 0x3f;            // exception flags, without effect on results
    static constexpr uint32_t default_flags = 0x1f80;  // traps masked, round to nearest, no FTZ, no DAZ
    const uint32_t saved_state_;
#elif defined(__aarch64__)
    DefaultFloatingPoint() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_state_));
        if (saved_state_ != 0) asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
    }
    ~DefaultFloatingPoint() {
        if (saved_state_ != 0) asm volatile("msr fpcr, %0" : : "r"(saved_state_));
    }

private:
    uint64_t saved_state_;
#else
    DefaultFloatingPoint() {
        fegetenv(&saved_state_);
        fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatingPoint() { fesetenv(&saved_state_); }

private:
    fenv_t saved_state_;
#endif
};

}  // namespace regard

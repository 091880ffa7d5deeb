// Whether other threads compete for the cores, as far as threads that wait can tell.
//
// A thread that polls a variable sees it change within a microsecond, and one that sleeps only after the kernel has woken
// it: 5 microseconds, on a virtual machine up to 100. So polling is right where each thread has a core. Where it has not,
// a polling thread takes the time of the thread that it waits for. Both look alike from inside but for one thing: the
// clock of a thread that lost its core jumps between two polls. After such a jump nobody polls for a while.
#pragma once

#include <stdint.h>

#include <atomic>
#include <thread>

namespace regard {

// Nanoseconds of a clock that never goes back.
int64_t now();

class MachineLoad {
public:
    // Whether a delay was reported a short time ago: for 5 ms after the first one, and for twice as long, up to a second,
    // after each further one that comes within 50 ms of the end of that time.
    bool is_busy() const { return now() < end_.load(std::memory_order_relaxed); }

    // Reports that a thread waited for a core.
    void report_delay();

private:
    std::atomic<int64_t> end_{0}, duration_{0};
};

// The delays of threads that poll.
extern MachineLoad load_of_pollers;

constexpr int64_t longest_poll = 1000000, longest_poll_when_busy = 5000, longest_step = 700000;  // nanoseconds

inline void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_ia32_pause();
#endif
}

// Polls until ready() and returns true, or gives up and returns false: after a millisecond, or at once where threads
// compete for the cores. Between polls the core is offered to other threads.
template <class Ready>
bool poll(Ready ready) {
    if (ready()) return true;
    const int64_t end = now() + (load_of_pollers.is_busy() ? longest_poll_when_busy : longest_poll);
    for (int64_t last = now(); last < end;) {
        for (int step = 0; step < 64; ++step) {
            if (ready()) return true;
            pause();
        }
        std::this_thread::yield();
        const int64_t current = now();
        if (current - last > longest_step) {
            load_of_pollers.report_delay();
            return ready();
        }
        last = current;
    }
    return ready();
}

}  // namespace regard

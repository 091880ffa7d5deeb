#include "runtime/machine_load.h"

#include <algorithm>
#include <chrono>

namespace regard {
namespace {

constexpr int64_t shortest = 5000000, longest = 1000000000, soon = 50000000;  // nanoseconds

}  // namespace

MachineLoad load_of_pollers;

int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void MachineLoad::report_delay() {
    const int64_t time = now(), end = end_.load(std::memory_order_relaxed);
    if (time < end) return;
    const int64_t before = duration_.load(std::memory_order_relaxed);
    const int64_t next = time - end < soon ? std::min(2 * before, longest) : shortest;
    duration_.store(next, std::memory_order_relaxed);
    end_.store(time + next, std::memory_order_relaxed);
}

}  // namespace regard

#include "runtime/task_times.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace regard {
namespace {

std::atomic<bool> is_recording{false};
std::mutex mutex;
std::vector<TaskTimes> recorded;

}  // namespace

void record_task_times(bool on) { is_recording = on; }

bool task_times_are_recorded() { return is_recording.load(std::memory_order_relaxed); }

void add_task_times(TaskTimes times) {
    const std::lock_guard<std::mutex> lock(mutex);
    recorded.push_back(std::move(times));
}

std::vector<TaskTimes> take_task_times() {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::exchange(recorded, {});
}

}  // namespace regard

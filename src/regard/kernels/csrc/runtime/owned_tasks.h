// The tasks of a parallel region, or of a stage of one, in ranges of adjacent tasks: a single one for all threads, or one
// for each. A thread takes the tasks of its own range in their order, and then the next ones of others.
//
// With a range for each, a thread computes about the same tasks of each stage: what it reads again is in its own cache, and
// what it was the first to write is in the memory of its own processor.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <atomic>

namespace regard {

class OwnedTasks {
public:
    // To be called while no thread takes tasks.
    void begin(int64_t tasks, int ranges) {
        tasks_ = tasks;
        ranges_ = static_cast<int>(std::clamp<int64_t>(std::min<int64_t>(tasks, ranges), 1, max_ranges));
        ranges_left_ = tasks > 0 ? ranges_ : 0;
        ++call_;
        for (; prepared_ < ranges_; ++prepared_) taken_[prepared_].count = 0;
    }

    // Calls run(task) for tasks that no other thread has taken, until there is none.
    template <class Run>
    void take_all(int thread, Run run) {
        for (int offset = 0; offset < ranges_ && ranges_left_ > 0; ++offset) {
            const int range = (thread + offset) % ranges_;
            for (int64_t task = take(range); task >= 0; task = take(range)) run(task);
        }
    }

private:
    static constexpr int max_ranges = 256;
    static constexpr int count_bits = 40;

    // The next task of a range, or -1. The number of the call stands beside the number of tasks that were taken: it is
    // another one where nothing was, so that nobody needs to write all ranges for each stage.
    int64_t take(int range) {
        const int64_t first = first_task(range), all = first_task(range + 1) - first;
        std::atomic<uint64_t>& taken = taken_[range].count;
        const uint64_t none = call_ << count_bits;
        for (uint64_t seen = taken;;) {
            const uint64_t before = seen < none ? none : seen;
            const auto index = static_cast<int64_t>(before - none);
            if (index == all) return -1;
            if (!taken.compare_exchange_weak(seen, before + 1)) continue;
            if (index + 1 == all) --ranges_left_;
            return first + index;
        }
    }
    int64_t first_task(int range) const {
        return tasks_ / ranges_ * range + std::min<int64_t>(range, tasks_ % ranges_);
    }

    struct alignas(64) Taken {
        std::atomic<uint64_t> count;
    };

    int64_t tasks_ = 0;
    int ranges_ = 1, prepared_ = 0;
    uint64_t call_ = 0;
    alignas(64) std::atomic<int> ranges_left_{0};
    Taken taken_[max_ranges];  // written when a range is used first
};

}  // namespace regard

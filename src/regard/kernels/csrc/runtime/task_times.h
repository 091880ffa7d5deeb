// The time of each task, as one core computes them one after the other: what a machine with more cores than this one would
// share among its threads. While times are recorded, no call has helpers, but its work is divided for the threads that it
// asks for.
#pragma once

#include <stdint.h>

#include <vector>

namespace regard {

// Nanoseconds of the tasks of one call of parallel_for.
typedef std::vector<int64_t> TaskTimes;

void record_task_times(bool on);
bool task_times_are_recorded();
void add_task_times(TaskTimes times);

// The recorded calls in their order, which are then forgotten.
std::vector<TaskTimes> take_task_times();

}  // namespace regard

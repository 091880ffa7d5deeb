// Threads of the module itself, which help a calling thread with its tasks.
//
// OpenMP's team has a barrier at its end: the caller waits for every member, also for one that has done nothing because
// no core was free for it. Here the caller offers its job to workers, does the job itself, and then waits only for those
// that have begun; from the others it takes the offer back. So beside other processes a job takes no longer than on the
// caller alone, but for a task that a worker has begun. While they wait, threads poll and then sleep (machine_load.h).
#pragma once

namespace regard {

class Worker;

// A job of one caller, and the workers that help with it. Workers are shared by all callers: one finds fewer while others
// compute.
class Team {
public:
    // ``run`` must not throw, and must return at once where nothing is left to do.
    Team(void (*run)(void* context, int thread), void* context) : run_(run), context_(context) {}
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Has run(context, thread) called on up to ``threads`` - 1 workers, each with its own thread in 1 .. threads - 1.
    // Called at most once.
    void gather(int threads);

    // Returns when all workers that began are done.
    ~Team();

    static constexpr int max_workers = 255;

private:
    void (*const run_)(void* context, int thread);
    void* const context_;
    Worker* workers_[max_workers];
    int count_ = 0;
};

// In a child process, after fork: the workers of the parent are not there.
void forget_workers();

}  // namespace regard

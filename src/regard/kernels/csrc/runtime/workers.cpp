#include "runtime/workers.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "runtime/machine_load.h"

namespace regard {
namespace {

struct Job {
    void (*run)(void* context, int thread) = nullptr;
    void* context = nullptr;
    int thread = 0;
};

}  // namespace

// One thread. Never destroyed: it runs until the process ends.
class Worker {
public:
    // Null if no thread can be started.
    static Worker* start() {
        auto* worker = new (std::nothrow) Worker;
        if (worker == nullptr) return nullptr;
        try {
            std::thread([worker] { worker->serve(); }).detach();
        } catch (const std::system_error&) {
            delete worker;
            return nullptr;
        }
        return worker;
    }

    // Offers a job, which the worker takes when it has a core.
    void offer(const Job& job) {
        job_ = job;
        state_.store(offered);
        wake(worker_sleeps_);
    }

    // Takes the offer back, or waits until the job is done if the worker has begun.
    void end_offer() {
        int expected = offered;
        if (state_.compare_exchange_strong(expected, idle)) return;
        wait(caller_sleeps_, [this] { return state_.load() == idle; });
    }

private:
    enum State { idle, offered, running };

    void serve() {
        for (;;) {
            wait(worker_sleeps_, [this] { return state_.load() == offered; });
            int expected = offered;
            if (!state_.compare_exchange_strong(expected, running)) continue;  // taken back
            job_.run(job_.context, job_.thread);
            state_.store(idle);
            wake(caller_sleeps_);
        }
    }

    // ``sleeps`` is set before the condition is read a last time, and read after the condition is set (in ``wake``), both
    // in one order for all threads. So either the sleeper sees the condition, or the other thread sees the sleeper.
    template <class Ready>
    void wait(std::atomic<bool>& sleeps, Ready ready) {
        if (poll(ready)) return;
        std::unique_lock<std::mutex> lock(mutex_);
        sleeps.store(true);
        changed_.wait(lock, ready);
        sleeps.store(false);
    }

    void wake(std::atomic<bool>& sleeps) {
        if (!sleeps.load()) return;
        std::lock_guard<std::mutex> lock(mutex_);
        changed_.notify_all();
    }

    std::atomic<int> state_{idle};
    Job job_;  // written while the state is idle, by the caller that has reserved the worker
    std::atomic<bool> worker_sleeps_{false}, caller_sleeps_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
};

namespace {

// The workers that no caller has reserved. There are never more in all than one caller has asked for.
class Reserve {
public:
    // Reserves up to ``count`` workers, and returns their number.
    int take(int count, Worker** taken) {
        std::lock_guard<std::mutex> lock(mutex_);
        int found = 0;
        for (; found < count && idle_count_ > 0; ++found) taken[found] = idle_[--idle_count_];
        for (; found < count && started_ < count; ++found, ++started_) {
            if ((taken[found] = Worker::start()) == nullptr) break;
        }
        return found;
    }

    // In the reverse order, so that the next caller gets those that computed last: they may still poll.
    void give_back(int count, Worker** taken) {
        std::lock_guard<std::mutex> lock(mutex_);
        while (count > 0) idle_[idle_count_++] = taken[--count];
    }

private:
    std::mutex mutex_;
    Worker* idle_[Team::max_workers];
    int idle_count_ = 0, started_ = 0;
};

// Never destroyed: a thread may outlive the end of the module.
std::atomic<Reserve*> reserve{new Reserve};

}  // namespace

void Team::gather(int threads) {
    count_ = reserve.load()->take(std::min(threads - 1, max_workers), workers_);
    for (int index = 0; index < count_; ++index) workers_[index]->offer({run_, context_, index + 1});
}

Team::~Team() {
    for (int index = 0; index < count_; ++index) workers_[index]->end_offer();
    if (count_ > 0) reserve.load()->give_back(count_, workers_);
}

void forget_workers() { reserve.store(new Reserve); }

}  // namespace regard

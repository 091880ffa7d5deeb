#include "runtime/parallel.h"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "runtime/floating_point.h"
#include "runtime/huge_pages.h"
#include "runtime/machine_load.h"
#include "runtime/openmp_runtime.h"
#include "runtime/owned_tasks.h"
#include "runtime/task_times.h"
#include "runtime/workers.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define REGARD_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define REGARD_ADDRESS_SANITIZER 1
#endif
#endif

namespace regard {
namespace {

constexpr size_t alignment = 64;
constexpr size_t page = 4096;
// What a call needs grows with the number of its threads.
const size_t max_pool_bytes = (size_t{64} << 20) + (size_t{8} << 20) * std::min(std::thread::hardware_concurrency(), 128u);
constexpr int max_pool_blocks = 32;

void* allocate(size_t bytes) {
    // With AddressSanitizer, the form of operator new that throws would end the process.
    void* data = ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
    if (data == nullptr) throw std::bad_alloc();
    advise_huge_pages(data, bytes);
    return data;
}
void release(void* data) { ::operator delete(data, std::align_val_t{alignment}); }

// Cache of unused blocks, at most max_pool_bytes in total.
class Pool {
public:
    // A block of at least ``bytes`` and at most twice that, or null.
    void* take(size_t bytes, size_t* capacity) {
        std::lock_guard<std::mutex> lock(mutex_);
        int best = -1;
        for (int index = 0; index < count_; ++index) {
            const size_t size = blocks_[index].bytes;
            if (size >= bytes && size / 2 <= bytes && (best < 0 || size < blocks_[best].bytes)) best = index;
        }
        if (best < 0) return nullptr;
        const Block taken = remove(best);
        *capacity = taken.bytes;
        return taken.data;
    }

    // Keeps the block and releases the oldest ones if necessary. Returns false if the block alone exceeds the limit.
    bool keep(void* data, size_t bytes) {
        if (bytes > max_pool_bytes) return false;
        std::lock_guard<std::mutex> lock(mutex_);
        while (count_ == max_pool_blocks || bytes > max_pool_bytes - pooled_bytes_) release(remove(0).data);
        blocks_[count_++] = Block{data, bytes};
        pooled_bytes_ += bytes;
        return true;
    }

    // Releases all blocks.
    void empty() {
        std::lock_guard<std::mutex> lock(mutex_);
        while (count_ > 0) release(remove(0).data);
    }

    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

private:
    struct Block {
        void* data;
        size_t bytes;
    };

    Block remove(int index) {
        const Block removed = blocks_[index];
        --count_;
        memmove(blocks_ + index, blocks_ + index + 1, sizeof(Block) * static_cast<size_t>(count_ - index));
        pooled_bytes_ -= removed.bytes;
        return removed;
    }

    std::mutex mutex_;
    Block blocks_[max_pool_blocks];  // oldest first
    int count_ = 0;
    size_t pooled_bytes_ = 0;
};

// Never destroyed: a thread may still be running when the process ends. Locked while a process forks, since the child
// has a copy of the mutex, but not the thread that would unlock it.
Pool& pool() {
    static Pool* const only = new Pool;
    return *only;
}

std::atomic<bool> poison_new_scratch{false};

// After fork a child has one thread, and OpenMP still counts on the team of the parent: the child would wait for it for
// ever. So from then on the workers of the module compute.
std::atomic<bool> in_forked_child{false};

// Whether the thread computes a task, in which one thread computes all tasks of inner regions.
thread_local bool in_task = false;

MachineLoad load_of_team;  // the delays of torch's threads

// Torch's threads poll for milliseconds after each region, unless they were told not to, and then no other thread finds a
// free core for that time. So they compute regions too, which they begin at once. But where other processes compete for
// the cores, a region would wait for each of them (workers.h).
bool uses_team_of_torch() {
    return !in_forked_child.load(std::memory_order_relaxed) && openmp::threads_poll() && !load_of_team.is_busy();
}

std::atomic<int64_t> teams_gathered{0}, stages_run{0};

constexpr int64_t longest_delay = 1000000;  // nanoseconds until a thread of a team is missed
constexpr int64_t longest_alone = 100000;   // nanoseconds until a caller wakes sleeping workers

// A parallel region: tasks for the calling thread and its team.
class Region {
public:
    Region(int64_t tasks, int ranges, int threads, void (*run)(void* context, int64_t task, int thread), void* context)
        : tasks(tasks), threads(threads), run(run), context(context) {
        queue.begin(tasks, ranges);
    }

    void compute() {
        if (uses_team_of_torch())
            run_on_team_of_torch();
        else
            run_with_workers();
    }

private:
    // To wake a worker takes longer than many a small region. So where workers sleep, the caller begins alone.
    void run_with_workers() {
        ++teams_gathered;
        Team team(&take_tasks, this);
        if (load_of_pollers.is_busy())
            pending_team = &team;
        else
            team.gather(helpful_threads(tasks));
        take_tasks(this, 0);
    }

    // Not cut down to the number of tasks: OpenMP would end the spare threads and start them again later.
    void run_on_team_of_torch() {
        ++teams_gathered;
        openmp::run_team(threads, &take_tasks, this);
        const int64_t waited = now() - end_of_caller;
        if (waited > longest_delay && waited > 2 * longest_task) load_of_team.report_delay();
    }

    int helpful_threads(int64_t tasks_left) const { return static_cast<int>(std::min<int64_t>(threads, tasks_left)); }

    // Run by each thread of a team: takes the next task until none is left.
    static void take_tasks(void* context, int thread) {
        const DefaultFloatingPoint arithmetic;
        const bool nested = std::exchange(in_task, true);
        Region& region = *static_cast<Region*>(context);
        thread == 0 ? region.take_tasks_as_caller() : region.take_tasks_as_helper(thread);
        in_task = nested;
    }

    void take_tasks_as_helper(int thread) {
        queue.take_all(thread, [&](int64_t task) { run(context, task, thread); });
    }

    void take_tasks_as_caller() {
        const int64_t start = now();
        end_of_caller = start;
        int64_t tasks_left = tasks;  // while the caller is alone
        queue.take_all(0, [&](int64_t task) {
            run(context, task, 0);
            --tasks_left;
            const int64_t before = std::exchange(end_of_caller, now());
            longest_task = std::max(longest_task, end_of_caller - before);
            if (pending_team != nullptr && end_of_caller - start > longest_alone)
                std::exchange(pending_team, nullptr)->gather(helpful_threads(tasks_left + 1));
        });
    }

    const int64_t tasks;
    const int threads;
    void (*const run)(void* context, int64_t task, int thread);
    void* const context;
    OwnedTasks queue;
    Team* pending_team = nullptr;                 // a team that the caller gathers if the region lasts
    int64_t longest_task = 0, end_of_caller = 0;  // nanoseconds, of the calling thread
};

// A region of several stages. Between them its helpers poll, and then sleep.
class Stages {
public:
    // Of a call of in_one_region on this thread, or null.
    static Stages*& of_caller() {
        thread_local Stages* current = nullptr;
        return current;
    }

    // Called by each helper: computes tasks of all stages that it finds open, until the end.
    void serve(int thread) {
        const DefaultFloatingPoint arithmetic;
        const bool nested = std::exchange(in_task, true);
        for (uint64_t last = 0;;) {
            wait([&] { return stage_of(state_.load()) != last; });
            uint64_t seen = state_.load();
            last = stage_of(seen);
            if (last == ended) break;
            // Counted as a member before it reads what the stage is, unless the stage was closed meanwhile.
            if (!is_open(seen) || !state_.compare_exchange_strong(seen, seen + 1)) {
                if (is_open(seen) && stage_of(seen) == last) last = 0;  // another member came first: once more
                continue;
            }
            if (thread < threads_)
                queue_.take_all(thread, [&](int64_t task) { run_(context_, task, thread); });
            --state_;
            wake();
        }
        in_task = nested;
    }

    // Called by the caller: runs a stage, with those helpers that are there.
    void run(int64_t tasks, int ranges, int threads, void (*run)(void*, int64_t, int), void* context) {
        ++stages_run;
        run_ = run, context_ = context, threads_ = threads;
        queue_.begin(tasks, ranges);
        state_.store((stage_ += 2) << member_bits);  // odd: open, without members
        wake();
        {
            const DefaultFloatingPoint arithmetic;
            const bool nested = std::exchange(in_task, true);
            queue_.take_all(0, [&](int64_t task) { run(context, task, 0); });
            in_task = nested;
        }
        state_ += uint64_t{1} << member_bits;  // closed
        wait([this] { return members_of(state_.load()) == 0; });
    }

    void end() {
        state_.store(ended << member_bits);
        wake();
    }

private:
    static constexpr int member_bits = 16;
    static constexpr uint64_t ended = ~uint64_t{0} >> member_bits;
    static uint64_t stage_of(uint64_t state) { return state >> member_bits; }
    static uint64_t members_of(uint64_t state) { return state & ((uint64_t{1} << member_bits) - 1); }
    static bool is_open(uint64_t state) { return stage_of(state) % 2 == 1; }

    // As of a worker (workers.cpp): a sleeper is counted before it reads the condition a last time, and looked for after
    // the condition is set.
    template <class Ready>
    void wait(Ready ready) {
        if (poll(ready)) return;
        std::unique_lock<std::mutex> lock(mutex_);
        ++sleepers_;
        changed_.wait(lock, ready);
        --sleepers_;
    }
    void wake() {
        if (sleepers_.load() == 0) return;
        std::lock_guard<std::mutex> lock(mutex_);
        changed_.notify_all();
    }

    alignas(64) std::atomic<uint64_t> state_{0};  // the number of the stage, and of the members that compute it
    OwnedTasks queue_;
    alignas(64) std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
    // Written by the caller while no stage is open.
    void (*run_)(void*, int64_t, int) = nullptr;
    void* context_ = nullptr;
    int threads_ = 0;
    uint64_t stage_ = uint64_t(0) - 1;
};

// A call of in_one_region, on the calling thread of its team.
class RegionOfStages {
public:
    RegionOfStages(int threads, void (*body)(void*), void* context) : threads_(threads), body_(body), context_(context) {}

    void run() {
        ++teams_gathered;
        if (uses_team_of_torch()) {
            openmp::run_team(threads_, &run_member, this);
        } else {
            Team team(&run_member, this);
            team.gather(threads_);
            call_body();
        }
        if (error_) std::rethrow_exception(error_);
    }

private:
    static void run_member(void* context, int thread) {
        RegionOfStages& region = *static_cast<RegionOfStages*>(context);
        thread == 0 ? region.call_body() : region.stages_.serve(thread);
    }
    // An exception must not leave a function that the runtime of OpenMP has called.
    void call_body() {
        Stages::of_caller() = &stages_;
        try {
            body_(context_);
        } catch (...) {
            error_ = std::current_exception();
        }
        Stages::of_caller() = nullptr;
        stages_.end();
    }

    const int threads_;
    void (*const body_)(void*);
    void* const context_;
    Stages stages_;
    std::exception_ptr error_;
};

#if defined(__unix__) || defined(__APPLE__)
const int fork_handlers = pthread_atfork(
    [] { pool().lock(); },
    [] { pool().unlock(); },
    [] {
        pool().unlock();
        forget_workers();
        in_forked_child = true;
    });
#endif

}  // namespace

static void run_serial(int64_t tasks, void (*run)(void*, int64_t, int), void* context) {
    const DefaultFloatingPoint arithmetic;
    for (int64_t task = 0; task < tasks; ++task) run(context, task, 0);
}

static void run_timed(int64_t tasks, void (*run)(void*, int64_t, int), void* context) {
    const DefaultFloatingPoint arithmetic;
    const bool nested = std::exchange(in_task, true);
    TaskTimes times;
    times.reserve(static_cast<size_t>(tasks));
    int64_t last = now();
    for (int64_t task = 0; task < tasks; ++task) {
        run(context, task, 0);
        const int64_t end = now();
        times.push_back(end - last);
        last = end;
    }
    add_task_times(std::move(times));
    in_task = nested;
}

void detail::parallel_for(int64_t tasks, int ranges, int threads, void (*run)(void*, int64_t, int), void* context) {
    Stages* stages = Stages::of_caller();
    if (task_times_are_recorded() && !in_task) {
        run_timed(tasks, run, context);
    } else if (threads <= 1 || tasks <= 1 || in_task || (stages == nullptr && openmp::in_parallel())) {
        run_serial(tasks, run, context);
    } else if (stages != nullptr) {
        stages->run(tasks, ranges, threads, run, context);
    } else {
        Region(tasks, ranges, threads, run, context).compute();
    }
}

void detail::in_one_region(int threads, void (*body)(void*), void* context) {
    const bool is_inside = in_task || Stages::of_caller() != nullptr || openmp::in_parallel();
    // Where others compete for the cores, helpers would leave at once: each stage gathers a team for itself.
    if (threads <= 1 || is_inside || load_of_pollers.is_busy() || task_times_are_recorded()) return body(context);
    RegionOfStages(threads, body, context).run();
}

ParallelCounts parallel_counts() { return {teams_gathered.load(), stages_run.load()}; }

Scratch::Scratch(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
#ifdef REGARD_ADDRESS_SANITIZER
    data_ = allocate(capacity_ = bytes);  // exact size and never reused, so that overruns are detected
#else
    if (bytes > SIZE_MAX - page) throw std::bad_alloc();
    const size_t rounded = (bytes + page - 1) / page * page;
    data_ = pool().take(rounded, &capacity_);
    if (data_ == nullptr) {
        capacity_ = rounded;
        try {
            data_ = allocate(rounded);
        } catch (const std::bad_alloc&) {
            pool().empty();
            data_ = allocate(rounded);
        }
    }
#endif
    if (poison_new_scratch.load(std::memory_order_relaxed)) memset(data_, 0xFF, bytes);
}

Scratch::~Scratch() {
    if (data_ == nullptr) return;
#ifndef REGARD_ADDRESS_SANITIZER
    if (pool().keep(data_, capacity_)) return;
#endif
    release(data_);
}

Scratch::Scratch(Scratch&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Scratch& Scratch::operator=(Scratch&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(capacity_, other.capacity_);
    return *this;
}

size_t Scratch::bytes_of(std::initializer_list<int64_t> sizes, size_t element) {
    size_t bytes = element;
    for (int64_t size : sizes) {
        if (size < 0 || (size > 0 && bytes > SIZE_MAX / 2 / static_cast<size_t>(size))) throw std::bad_alloc();
        bytes *= static_cast<size_t>(size);
    }
    return bytes;
}

void Scratch::poison(bool on) { poison_new_scratch = on; }

}  // namespace regard

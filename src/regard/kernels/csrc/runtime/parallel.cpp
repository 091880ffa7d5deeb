#include "runtime/parallel.h"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "runtime/floating_point.h"
#include "runtime/huge_pages.h"
#include "runtime/machine_load.h"
#include "runtime/openmp_runtime.h"
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

constexpr int64_t longest_delay = 1000000;  // nanoseconds until a thread of a team is missed
constexpr int64_t longest_alone = 100000;   // nanoseconds until a caller wakes sleeping workers

// A parallel region: tasks for the calling thread and its team.
class Region {
public:
    Region(int64_t tasks, int threads, void (*run)(void* context, int64_t task, int thread), void* context)
        : tasks(tasks), threads(threads), run(run), context(context) {}

    void run_serial() {
        const DefaultFloatingPoint arithmetic;
        for (int64_t task = 0; task < tasks; ++task) run(context, task, 0);
    }

    void run_parallel() {
        if (uses_team_of_torch())
            run_on_team_of_torch();
        else
            run_with_workers();
    }

private:
    // Not cut down to the number of tasks: OpenMP would end the spare threads and start them again later.
    void run_on_team_of_torch() {
        openmp::run_team(threads, &take_tasks, this);
        const int64_t waited = now() - end_of_caller;
        if (waited > longest_delay && waited > 2 * longest_task) load_of_team.report_delay();
    }

    // To wake a worker takes longer than many a small region. So where workers sleep, the caller begins alone.
    void run_with_workers() {
        Team team(&take_tasks, this);
        if (load_of_pollers.is_busy())
            pending_team = &team;
        else
            team.gather(helpful_threads(tasks));
        take_tasks(this, 0);
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
        for (int64_t task = next++; task < tasks; task = next++) run(context, task, thread);
    }

    void take_tasks_as_caller() {
        const int64_t start = now();
        end_of_caller = start;
        for (int64_t task = next++; task < tasks; task = next++) {
            run(context, task, 0);
            const int64_t before = std::exchange(end_of_caller, now());
            longest_task = std::max(longest_task, end_of_caller - before);
            if (pending_team != nullptr && end_of_caller - start > longest_alone)
                std::exchange(pending_team, nullptr)->gather(helpful_threads(tasks - task));
        }
    }

    const int64_t tasks;
    const int threads;
    void (*const run)(void* context, int64_t task, int thread);
    void* const context;
    std::atomic<int64_t> next{0};
    Team* pending_team = nullptr;                 // a team that the caller gathers if the region lasts
    int64_t longest_task = 0, end_of_caller = 0;  // nanoseconds, of the calling thread
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

void detail::parallel_for(int64_t tasks, int threads, void (*run)(void*, int64_t, int), void* context) {
    Region region(tasks, threads, run, context);
    if (threads > 1 && tasks > 1 && !in_task && !openmp::in_parallel()) return region.run_parallel();
    region.run_serial();
}

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

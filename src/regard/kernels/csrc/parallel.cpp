#include "parallel.h"

#include <string.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "floating_point.h"
#include "huge_pages.h"
#include "openmp_runtime.h"

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
constexpr size_t max_pool_bytes = size_t{64} << 20;
constexpr int max_pool_blocks = 32;

void* allocate(size_t bytes) {
    // With AddressSanitizer, the form of operator new that throws would end the process.
    void* data = ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
    if (data == nullptr) throw std::bad_alloc();
    advise_huge_pages(data, bytes);
    return data;
}
void release(void* data) { ::operator delete(data, std::align_val_t{alignment}); }

// Cache of unused blocks, at most 64 MiB in total.
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

// A parallel region: tasks for the calling thread and its team.
struct Region {
    int64_t tasks;
    int threads;
    void (*run)(void* context, int64_t task, int thread);
    void* context;
    std::atomic<int64_t> next{0};

    void run_serial() {
        const DefaultFloatingPoint arithmetic;
        for (int64_t task = 0; task < tasks; ++task) run(context, task, 0);
    }

    // The team is not cut down to the number of tasks: OpenMP would end the spare threads and start them again later.
    void run_parallel() { openmp::run_team(threads, &take_tasks, this); }

    // Run by each thread of a team: takes the next task until none is left.
    static void take_tasks(void* region, int thread) {
        const DefaultFloatingPoint arithmetic;
        Region& all = *static_cast<Region*>(region);
        for (int64_t task = all.next++; task < all.tasks; task = all.next++) all.run(all.context, task, thread);
    }
};

// A thread that runs regions for another thread, which waits.
class RegionThread {
public:
    // Null if no thread can be started. Never destroyed: its thread runs until the process ends.
    static RegionThread* start() {
        auto* region_thread = new RegionThread;
        try {
            std::thread([region_thread] { region_thread->serve(); }).detach();
        } catch (const std::system_error&) {
            delete region_thread;
            return nullptr;
        }
        return region_thread;
    }

    void enter(Region& region) {
        std::unique_lock<std::mutex> lock(mutex_);
        pending_region_ = &region;
        changed_.notify_all();
        changed_.wait(lock, [this] { return pending_region_ == nullptr; });
    }

private:
    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return pending_region_ != nullptr; });
            pending_region_->run_parallel();
            pending_region_ = nullptr;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    Region* pending_region_ = nullptr;
};

// After fork a child has one thread, the one that called fork, and OpenMP still has the team of this thread in the
// parent: the child would wait for that team forever. Any other thread of the child is new to OpenMP, and can have its
// own team. So the forking thread starts a substitute thread when it first needs a team.
thread_local bool in_forked_child = false;
thread_local RegionThread* region_thread = nullptr;

void enter(Region& region) {
    if (!in_forked_child) return region.run_parallel();
    if (region_thread == nullptr) region_thread = RegionThread::start();
    if (region_thread == nullptr) return region.run_serial();
    region_thread->enter(region);
}

#if defined(__unix__) || defined(__APPLE__)
const int fork_handlers = pthread_atfork(
    [] { pool().lock(); },
    [] { pool().unlock(); },
    [] {
        pool().unlock();
        in_forked_child = true;
        region_thread = nullptr;  // the parent's, if this thread had been forked before
    });
#endif

}  // namespace

void detail::parallel_for(int64_t tasks, int threads, void (*run)(void*, int64_t, int), void* context) {
    Region region{tasks, threads, run, context};
    if (threads > 1 && tasks > 1 && !openmp::in_parallel()) return enter(region);
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

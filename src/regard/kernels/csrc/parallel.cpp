#include "parallel.h"

#include <string.h>

#include <atomic>
#include <mutex>
#include <new>
#include <utility>

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
constexpr size_t most_kept = size_t{64} << 20;
constexpr int most_blocks = 32;

void* allocate(size_t bytes) {
    // AddressSanitizer ends the process in the form that throws by itself.
    void* data = ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
    if (data == nullptr) throw std::bad_alloc();
    return data;
}
void release(void* data) { ::operator delete(data, std::align_val_t{alignment}); }

// Blocks that nobody uses now, at most 64 MiB of them.
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

    // Keeps the block instead of the oldest ones, unless it is larger than all that may be kept.
    bool keep(void* data, size_t bytes) {
        if (bytes > most_kept) return false;
        std::lock_guard<std::mutex> lock(mutex_);
        while (count_ == most_blocks || bytes > most_kept - kept_) release(remove(0).data);
        blocks_[count_++] = Block{data, bytes};
        kept_ += bytes;
        return true;
    }

    // Gives everything back to the system.
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
        kept_ -= removed.bytes;
        return removed;
    }

    std::mutex mutex_;
    Block blocks_[most_blocks];  // oldest first
    int count_ = 0;
    size_t kept_ = 0;
};

// Never destroyed: a thread may still be at work when the process ends.
Pool& pool() {
    static Pool* const only = new Pool;
    return *only;
}

std::atomic<bool> poisoned{false};
std::atomic<bool> forked{false};

#if defined(__unix__) || defined(__APPLE__)
// A child has the memory of its parent but none of its threads: nobody would unlock the pool or wake up for OpenMP.
const int registered = pthread_atfork(
    [] { pool().lock(); },
    [] { pool().unlock(); },
    [] {
        pool().unlock();
        forked = true;
    });
#endif

bool one_thread() { return forked.load(std::memory_order_relaxed) || openmp::in_parallel(); }

struct Work {
    int64_t tasks;
    void (*run)(void* context, int64_t task, int thread);
    void* context;
    std::atomic<int64_t> next{0};
};

// What each thread of a team does: the next task, as long as there is one.
void take_tasks(void* of_all, int thread) {
    Work& work = *static_cast<Work*>(of_all);
    for (int64_t task = work.next++; task < work.tasks; task = work.next++) work.run(work.context, task, thread);
}

}  // namespace

void detail::parallel_for(int64_t tasks, int threads, void (*run)(void*, int64_t, int), void* context) {
    if (threads <= 1 || tasks <= 1 || one_thread()) {
        for (int64_t task = 0; task < tasks; ++task) run(context, task, 0);
        return;
    }
    // The team is not cut down to the number of tasks: OpenMP would end the spare threads and start them again later.
    Work work{tasks, run, context};
    openmp::run_team(threads, &take_tasks, &work);
}

Scratch::Scratch(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
#ifdef REGARD_ADDRESS_SANITIZER
    data_ = allocate(capacity_ = bytes);  // to the byte and never used again, so that no overrun stays unseen
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
    if (poisoned.load(std::memory_order_relaxed)) memset(data_, 0xFF, bytes);
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

void Scratch::poison(bool on) { poisoned = on; }

}  // namespace regard

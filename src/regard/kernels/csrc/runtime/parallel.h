// Parallel tasks, and scratch memory.
//
// The threads are the module's own (workers.h), or OpenMP's where those of torch poll while they wait (openmp_runtime.h).
// A free thread takes a task of any range (owned_tasks.h); a result must depend on the task only. So all threads use the same
// floating-point environment, whatever they did before (see floating_point.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <initializer_list>
#include <memory>
#include <type_traits>

#include "tiles/problem.h"

namespace regard {

namespace detail {
void parallel_for(int64_t tasks, int ranges, int threads, void (*run)(void* context, int64_t task, int thread),
                  void* context);
void in_one_region(int threads, void (*body)(void* context), void* context);

template <class Work>
void in_ranges(int64_t tasks, int ranges, int threads, Work& work) {
    auto run = [](void* context, int64_t task, int thread) noexcept { (*static_cast<Work*>(context))(task, thread); };
    parallel_for(tasks, ranges, threads, run, const_cast<std::remove_const_t<Work>*>(std::addressof(work)));
}
}  // namespace detail

// Calls work(task, thread) for each task of 0 .. tasks - 1, with thread in 0 .. threads - 1; a free thread takes the
// next task. Inside another parallel region one thread runs all tasks. ``work`` must not throw, so it allocates no memory: an
// exception ends the process here, and does not unwind the frames of another thread's runtime.
template <class Work>
void parallel_for(int64_t tasks, int threads, Work&& work) {
    detail::in_ranges(tasks, 1, threads, work);
}

// The same, but each thread first takes the tasks of a range of its own (owned_tasks.h). For tasks of equal cost of which
// those side by side use the same memory, in this stage or in the next.
template <class Work>
void parallel_for_owned(int64_t tasks, int threads, Work&& work) {
    detail::in_ranges(tasks, threads, threads, work);
}

// Calls body(), in which each parallel_for is a stage of one region: a team is gathered once, and its threads go from stage
// to stage at a barrier. The caller alone runs what is between them. Inside another region it only calls body().
template <class Body>
void in_one_region(int threads, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    auto call = [](void* context) { (*static_cast<Plain*>(context))(); };
    detail::in_one_region(threads, call, const_cast<std::remove_const_t<Plain>*>(std::addressof(body)));
}

// The number of teams that were gathered, and of stages of regions, since the process began.
struct ParallelCounts {
    int64_t teams, stages;
};
ParallelCounts parallel_counts();

// Scratch memory for one call, aligned to 64 bytes, uninitialized. Small blocks are cached for the next call: new
// memory costs a page fault per 4 KiB. Throws std::bad_alloc, also if the product of the sizes overflows.
class Scratch {
public:
    Scratch() = default;
    explicit Scratch(size_t bytes);
    ~Scratch();
    Scratch(Scratch&& other) noexcept;
    Scratch& operator=(Scratch&& other) noexcept;

    // Room for the product of the sizes, in elements.
    template <class Element>
    static Scratch of(std::initializer_list<int64_t> sizes) {
        return Scratch(bytes_of(sizes, sizeof(Element)));
    }

    template <class Element>
    Element* as() const {
        return static_cast<Element*>(data_);
    }
    size_t bytes() const { return bytes_; }

    static size_t bytes_of(std::initializer_list<int64_t> sizes, size_t element);

    // For tests: whether blocks are filled with 0xFF, which is NaN in every floating dtype, before they are handed out.
    static void poison(bool on);

private:
    void* data_ = nullptr;
    size_t bytes_ = 0, capacity_ = 0;
};

// Parts of scratch memory of equal size, in whole cache lines: for each thread, or each head of a round.
class ScratchParts {
public:
    ScratchParts() = default;
    ScratchParts(int64_t count, size_t bytes)
        : each_(align_up(bytes)), memory_(Scratch::of<char>({count, static_cast<int64_t>(each_)})) {}

    char* operator[](int64_t index) const { return memory_.as<char>() + static_cast<int64_t>(each_) * index; }
    size_t bytes_of_part() const { return each_; }

private:
    size_t each_ = 0;
    Scratch memory_;
};

}  // namespace regard

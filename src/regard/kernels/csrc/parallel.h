// Tasks on threads, and memory to work in.
//
// The threads are OpenMP's, from the runtime that torch has loaded already, so that both share one pool. Which thread
// gets which task is left to chance; a result must depend on the task alone. So all of them round alike, whatever the
// thread did before (see floating_point.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <initializer_list>
#include <memory>
#include <type_traits>

namespace regard {

namespace detail {
void parallel_for(int64_t tasks, int threads, void (*run)(void* context, int64_t task, int thread), void* context);
}

// work(task, thread) for each task of 0 .. tasks - 1, thread in 0 .. threads - 1, the next task to whoever is free.
// ``work`` must not throw. Inside another parallel region one thread does it all.
template <class Work>
void parallel_for(int64_t tasks, int threads, Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    auto run = [](void* context, int64_t task, int thread) { (*static_cast<Plain*>(context))(task, thread); };
    detail::parallel_for(tasks, threads, run, const_cast<std::remove_const_t<Plain>*>(std::addressof(work)));
}

// Memory for one call, aligned to 64 bytes, its content arbitrary. Small blocks are kept for the next call: fresh memory
// costs a page fault each 4 KiB. Throws std::bad_alloc, also where the product of the sizes is no size at all.
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

}  // namespace regard
